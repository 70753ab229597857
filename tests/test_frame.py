"""The frame of the project tells the truth: README, pins, container and settings agree, and nothing private is in."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tfviz.config import Settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_, FRONT_MATTER, BODY = README.split("---\n", 2)
SPACE = yaml.safe_load(FRONT_MATTER)
SETTINGS = dict(re.findall(r"^\| `(TFVIZ_\w+)` \| `([^`]*)` \|", BODY, re.MULTILINE))


def requirements(name: str) -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines())
    found = [Requirement(line) for line in lines if line and not line.startswith("-r ")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


APP, DEV = requirements("requirements.txt"), requirements("requirements-dev.txt")


def tracked() -> list[Path]:
    """The files that git has or would take; none where this is not a checkout."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return []
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def is_there(path: str) -> bool:
    return (ROOT / path).exists()


# ---- README ----


def test_the_space_can_be_built_from_the_front_matter() -> None:
    colors = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert {SPACE["colorFrom"], SPACE["colorTo"]} <= colors
    assert SPACE["title"] and SPACE["emoji"] and len(SPACE["short_description"]) <= 60
    assert SPACE["sdk"] == "gradio" and is_there(SPACE["app_file"])
    assert SPACE["license"] == PROJECT["license"].lower()
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", model) for model in SPACE["models"])


def test_readme_names_the_pinned_gradio_and_a_python_we_support() -> None:
    assert f"=={SPACE['sdk_version']}" == str(APP["gradio"].specifier)
    assert SPACE["python_version"] == "3.12"  # text: a bare 3.1 and 3.10 would be one number
    assert PROJECT["requires-python"] == ">=3.11,<3.13"


def test_every_make_command_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", "\n".join(code_of(BODY))))
    assert {"run", "test"} <= named <= targets


def code_of(markdown: str) -> list[str]:
    """Fenced blocks and inline code."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    return fenced + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL))


def test_every_path_of_the_readme_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", BODY)
    words = {word.rstrip(",;:.") for word in re.findall(r"[\w./-]+", "\n".join(code_of(BODY)))}
    tops = r"(?:tfviz|tests|assets|benchmarks)/|[\w-]+\.(?:py|txt|toml|md)$"
    paths = [word for word in words if re.match(tops, word)]
    assert "tfviz/config.py" in paths and "assets/screenshots/attention.png" in links
    assert not [path for path in [*links, *paths] if not is_there(path)]


def test_every_module_that_the_readme_runs_exists() -> None:
    modules = re.findall(r"python -m (tfviz[\w.]*)", BODY)
    assert modules
    paths = [name.replace(".", "/") for name in modules]
    assert not [path for path in paths if not is_there(f"{path}.py") and not is_there(f"{path}/__main__.py")]


def test_readme_lists_every_setting_with_its_default() -> None:
    known = set(re.findall(r'"(TFVIZ_\w+)"', (ROOT / "tfviz" / "config.py").read_text(encoding="utf-8")))
    assert SETTINGS.keys() == known
    assert Settings.from_environment(SETTINGS) == Settings.from_environment({})


def test_python_examples_of_the_readme_are_python() -> None:
    examples = re.findall(r"^```python\n(.*?)^```", BODY, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        ast.parse(example)


# ---- pins ----


def test_every_requirement_is_pinned_and_torch_is_a_range() -> None:
    assert APP.keys() & DEV.keys() == set()
    for name, requirement in (APP | DEV).items():
        operators = [specifier.operator for specifier in requirement.specifier]
        assert operators == ["=="] or name == "torch", f"{requirement} is not one exact release"
    torch = APP["torch"].specifier
    assert "2.8.0" in torch and "2.13.0" in torch and "2.14.0" not in torch


@pytest.mark.parametrize("requirement", [*APP.values(), *DEV.values()], ids=lambda requirement: requirement.name)
def test_what_is_installed_is_what_is_pinned(requirement: Requirement) -> None:
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)


def top_level_imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"tfviz", "tests", "app"}


@pytest.mark.parametrize("where, declared", [("tfviz", APP), ("tests", APP | DEV)])
def test_every_library_that_is_imported_is_a_requirement(where: str, declared: dict[str, Requirement]) -> None:
    files = [*(ROOT / where).rglob("*.py"), *(ROOT.glob("app.py") if where == "tfviz" else ())]
    used = set().union(*map(top_level_imports, files))
    distributions = packages_distributions()
    missing = [name for name in used if not {*map(canonicalize_name, distributions.get(name, []))} & declared.keys()]
    assert not missing


# ---- container ----


def test_the_container_has_the_python_and_port_of_the_readme() -> None:
    assert f"FROM python:{SPACE['python_version']}-slim" in DOCKERFILE
    assert "EXPOSE 7860" in DOCKERFILE and "-p 7860:7860" in BODY
    assert "USER 1000" in DOCKERFILE and "HEALTHCHECK" in DOCKERFILE
    assert "requirements.txt" in DOCKERFILE and '"app.py"' in DOCKERFILE


def test_the_container_sets_only_settings_that_exist() -> None:
    assert set(re.findall(r"TFVIZ_\w+", DOCKERFILE)) <= SETTINGS.keys()


def test_the_container_gets_every_file_the_app_needs() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {"!app.py", "!requirements.txt", "!assets", "!tfviz"} <= set(ignored)
    assert not {"assets/i18n", "assets/fonts"} & set(ignored)


# ---- nothing private ----


def joined(*parts: str) -> str:
    """A name that must not stand in any file, this one included."""
    return re.escape(".".join(parts))


PRIVATE = {
    "a path of one machine": rf"/(?:root|work|opt|home/runner)/\w|/Users/\w|{re.escape(str(ROOT))}/",
    "a package registry's host": "|".join(
        [
            joined("pypi", "org"),
            joined("pythonhosted", "org"),
            joined("registry", "npmjs"),
            joined("deb", "debian"),
            joined("download", "pytorch", "org"),
            r"(?:index-url|registry) *[=:] *[\"']?https?:",
        ]
    ),
    "a secret": r"\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{30,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bAKIA[A-Z0-9]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY",
}


@pytest.mark.parametrize("what", PRIVATE)
def test_no_file_holds(what: str) -> None:
    files = tracked()
    if not files:
        pytest.skip("not a git checkout")
    pattern = re.compile(PRIVATE[what].encode())
    assert not [str(path.relative_to(ROOT)) for path in files if pattern.search(path.read_bytes())]


@pytest.mark.parametrize(
    "what, text",
    [
        ("a path of one machine", "/".join(["", "root", "models"])),
        ("a package registry's host", ".".join(["https://files", "pythonhosted", "org"])),
        ("a secret", "hf_" + "a1" * 17),
    ],
)
def test_what_is_private_is_noticed(what: str, text: str) -> None:
    assert re.search(PRIVATE[what], text)
