"""The layers of tfviz: imports point down only, and each heavy library has one home.

app.py -> ui -> introspection -> sources -> inference -> model -> config -> registry
          +--> figures (a leaf: arrays in, pictures out)     training -> model
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfviz"

LEAVES = {"checks", "errors", "messages"}  # the sentences: open to every layer but figures
MAY_IMPORT = {
    "messages": set(),
    "errors": {"messages"},
    "checks": {"errors"},
    "registry": LEAVES,
    "config": LEAVES | {"registry"},
    "model": LEAVES | {"registry", "config"},
    "training": LEAVES | {"registry", "config", "model"},
    "inference": LEAVES | {"registry", "config", "model"},
    "sources": LEAVES | {"registry", "config", "model", "inference"},
    "introspection": LEAVES | {"registry", "config", "model", "inference", "sources"},
    "figures": set(),
    "ui": LEAVES | {"registry", "config", "model", "training", "inference", "sources", "introspection", "figures"},
}
HOME = {  # library: the layers that may import it; one that is not here is open to all but CLOSED layers
    "gradio": {"ui", "app"},
    "transformers": {"sources"},
    "huggingface_hub": {"sources"},
    "gguf": {"sources"},
    "plotly": {"figures", "ui"},
}
CLOSED = {  # layer: the only libraries it may import beside Python's own
    "messages": set(),
    "errors": set(),
    "checks": set(),
    "registry": set(),
    "config": set(),
    "figures": {"numpy", "plotly", "jaxtyping"},
    "model": {"torch", "jaxtyping"},
}


def modules_imported(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Every module that `source` imports, as a full dotted name; `package` is where relative imports start."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = [*package[: len(package) - level + 1]] if level else []
                name = ".".join([*base, *([module] if module else [])])
                # `from tfviz import model` names the layer behind the word import
                yield from (f"{name}.{alias.name}" for alias in names) if name == "tfviz" else (name,)
            case ast.Call(func=ast.Attribute(attr=call) | ast.Name(id=call), args=[ast.Constant(value=str(name)), *_]):
                if call in {"import_module", "__import__", "find_spec"}:
                    yield name


def complaints(layer: str, names: Iterator[str]) -> Iterator[str]:
    """What is wrong with a file of `layer` that imports `names`, a sentence each."""
    for name in names:
        top, *rest = name.split(".")
        if top == "tfviz":
            below = rest[0] if rest else ""
            if layer != "app" and below not in MAY_IMPORT[layer] | {layer}:
                yield f"{layer} imports {name}, which is not below it"
        elif layer not in HOME.get(top, {layer}):
            yield f"{layer} imports {name}, whose home is {' and '.join(sorted(HOME[top]))}"
        elif layer in CLOSED and top not in CLOSED[layer] | sys.stdlib_module_names:
            yield f"{layer} imports {name}, but may import only {', '.join(sorted(CLOSED[layer])) or 'Python itself'}"


def layer_of(path: Path) -> str:
    """`tfviz/model/attention.py` -> `model`, `tfviz/config.py` -> `config`, `app.py` -> `app`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "tfviz" else parts[0]


FILES = sorted(path for path in [*PACKAGE.rglob("*.py"), *ROOT.glob("app.py")] if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_down_only(path: Path) -> None:
    names = modules_imported(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parent.parts)
    assert not list(complaints(layer_of(path), names))


def test_every_file_belongs_to_a_layer() -> None:
    assert {layer_of(path) for path in FILES} <= {*MAY_IMPORT, "app"}


@pytest.mark.parametrize(
    "layer, source",
    [
        ("model", "import plotly.graph_objects as go"),
        ("model", "from tfviz.sources import catalog"),
        ("model", "from tfviz import ui"),
        ("model", "from ..ui import shell"),
        ("model", "def late():\n    from gradio import Blocks"),
        ("figures", "import torch"),
        ("figures", "from tfviz.errors import TfvizError"),
        ("introspection", "import transformers"),
        ("inference", "import importlib\nimportlib.import_module('transformers.models')"),
        ("app", "import transformers"),
    ],
)
def test_a_wrong_import_is_noticed(layer: str, source: str) -> None:
    assert list(complaints(layer, modules_imported(source, ("tfviz", layer))))


@pytest.mark.parametrize(
    "layer, source",
    [
        ("ui", "import gradio as gr\nfrom tfviz.figures import heads"),
        ("sources", "from transformers import AutoModel"),
        ("model", "import math\nimport torch\nfrom .masks import make_pad_mask\nfrom tfviz.config import PRESETS"),
        ("app", "import gradio\nfrom tfviz.ui.shell import build"),
    ],
)
def test_a_right_import_is_let_through(layer: str, source: str) -> None:
    assert not list(complaints(layer, modules_imported(source, ("tfviz", layer))))


@pytest.mark.parametrize(
    "module, stay_out",
    [
        ("tfviz", {"torch", "transformers", "gradio", "plotly", "pandas", "numpy"}),
        ("tfviz.figures", {"torch", "transformers", "gradio"}),
        ("tfviz.ui", {"torch", "transformers"}),
        ("tfviz.model", {"transformers", "gradio", "plotly", "pandas"}),
    ],
)
def test_importing_stays_light(module: str, stay_out: set[str]) -> None:
    """Heavy libraries are loaded when they are first needed, so that the page answers in seconds."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not stay_out & set(json.loads(out.splitlines()[-1]))
