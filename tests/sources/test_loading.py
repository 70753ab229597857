"""A person's folder, from path to model: what is read off it, and what is refused without touching what was there."""

import json
import os
import shutil
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.checkpoints import ARCHITECTURES, LLAMA_LIKE, byte_level_tokenizer
from tests.conftest import Checkpoint, Loaded
from tfviz.config import Settings
from tfviz.errors import ModelUnavailable, TfvizError
from tfviz.messages import LANGUAGES
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.huggingface import token_limit
from tfviz.sources.locate import locate
from tfviz.sources.resident import Resident

TEXT = "the cat saw the door"


@pytest.fixture
def resident(settings: Settings) -> Resident:
    return Resident(settings)


def assert_sentence(error: TfvizError) -> None:
    for language in LANGUAGES:
        sentence = error.in_language(language)
        assert sentence and "\n" not in sentence and "Traceback" not in sentence and len(sentence) < 400
        assert not sentence.endswith(":"), "it breaks off before the reason"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_folder_is_loaded_by_its_path(name: str, checkpoint: Checkpoint, resident: Resident) -> None:
    folder = checkpoint(name)
    loaded = resident.get(str(folder))
    assert (loaded.id, loaded.label) == (str(folder), name)
    assert loaded.revision.startswith("local")
    assert (loaded.family, loaded.precision, loaded.device.type) == (ARCHITECTURES[name][2], "fp32", "cpu")
    assert loaded.has_logits == (name != "bert")
    output = loaded.forward(
        loaded.prompt(TEXT, TEXT if loaded.family == "encoder-decoder" else None), AttentionCall("naive")
    )
    assert output.shape[-1] == (400 if loaded.has_logits else 32)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_loaded_model_is_the_saved_one_in_inference_mode(name: str, checkpoint: Checkpoint, loaded: Loaded) -> None:
    model = loaded(name)
    saved = ARCHITECTURES[name][0]().__class__.from_pretrained(checkpoint(name)).state_dict()
    assert saved.keys() == model.model.state_dict().keys()
    assert all(torch.equal(tensor, saved[key]) for key, tensor in model.model.state_dict().items())
    assert not any(module.training for module in model.model.modules())
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
    assert model.n_parameters == sum(parameter.numel() for parameter in model.model.parameters())
    assert model.weight_bytes >= 4 * model.n_parameters


LIMITS = {"gpt2": 64, "opt": 64, "llama": 128, "bert": 64, "roberta": 64, "bart": 64, "marian": 64, "t5": 512}


@pytest.mark.parametrize("name", LIMITS)
def test_the_token_limit_is_what_the_tokenizer_and_the_positions_allow(name: str, loaded: Loaded) -> None:
    assert loaded(name).token_limit == LIMITS[name]


def test_roberta_has_no_position_for_its_padding_index_and_what_is_before(loaded: Loaded) -> None:
    boundless = SimpleNamespace(model_max_length=int(1e30))
    assert loaded("roberta").model.config.max_position_embeddings == 66
    assert token_limit(loaded("roberta").model, boundless) == 64
    assert token_limit(loaded("bert").model, boundless) == 64
    assert token_limit(loaded("t5").model, boundless) == 1_000_000
    assert token_limit(loaded("t5").model, SimpleNamespace(model_max_length=77)) == 77


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_text_beyond_the_limit_is_cut_and_runs(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    long = "cat " * (model.token_limit + 50)
    prompt = model.prompt(long, long if model.family == "encoder-decoder" else None)
    assert prompt.n_tokens == model.token_limit < prompt.source.total and prompt.source.cut_from
    assert len(prompt.target) <= model.token_limit
    assert model.forward(prompt, AttentionCall("naive"), all_logits=False).isfinite().all()


def test_a_pair_is_two_segments_for_an_encoder_and_refused_by_a_decoder(
    checkpoint: Checkpoint, resident: Resident, loaded: Loaded, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "bert")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}  # as BertTokenizer has them
    (folder / "tokenizer_config.json").write_text(json.dumps(config | names))
    prompt = resident.get(str(folder)).prompt("the cat", "the door")
    assert prompt.inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    with pytest.raises(TfvizError, match="no second sentence") as refused:
        loaded("llama").prompt("the cat", "the door")
    assert_sentence(refused.value)


def test_a_typed_target_follows_the_start_token_and_loses_its_end(loaded: Loaded) -> None:
    prompt = loaded("t5").prompt(TEXT, "the door")
    assert [token.text for token in prompt.target] == ["<pad>", "the", "door"]
    assert prompt.target[0].special and not prompt.target_written
    assert prompt.inputs["decoder_input_ids"].tolist() == [[token.id for token in prompt.target]]


def test_a_checkpoint_that_came_without_its_head_has_no_logits(
    tmp_path: Path, resident: Resident, quiet_transformers: None
) -> None:
    import transformers as hf

    hf.LlamaModel(hf.LlamaConfig(**LLAMA_LIKE)).save_pretrained(tmp_path)  # its head is not tied to its table
    byte_level_tokenizer().save_pretrained(tmp_path)
    assert not resident.get(str(tmp_path)).has_logits


def test_a_model_that_is_slow_to_read_keeps_no_other_waiting(
    checkpoint: Checkpoint, resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers replaces its own functions while it builds and finishes a model (tie_weights, initialisers) and puts
    back what it found: two that overlap leave the replacements behind. Only those two steps may take turns."""
    import transformers as hf

    slow, fast = str(checkpoint("llama")), str(checkpoint("gpt2"))
    read = hf.PreTrainedModel._load_pretrained_model
    reading, let_go = threading.Event(), threading.Event()

    def slowly(model: Any, *args: Any, **options: Any) -> Any:
        if isinstance(model, hf.LlamaForCausalLM):
            reading.set()
            assert let_go.wait(60)
        return read(model, *args, **options)

    monkeypatch.setattr(hf.PreTrainedModel, "_load_pretrained_model", staticmethod(slowly))
    before = hf.PreTrainedModel.tie_weights
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(resident.get, slow)
        assert reading.wait(60)
        try:
            quick: Any = resident.get(fast).model
            assert not waiting.done() and quick.lm_head.weight is quick.transformer.wte.weight
        finally:
            let_go.set()
        assert waiting.result().has_logits
    assert hf.PreTrainedModel.tie_weights is before


def test_two_models_are_never_built_at_once(
    checkpoint: Checkpoint, resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers as hf

    inside, most = [0], [0]

    def watched(build: Any) -> Any:
        def __init__(self: Any, *args: Any, **options: Any) -> None:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.1)
            build(self, *args, **options)
            inside[0] -= 1

        return __init__

    for kind in (hf.LlamaForCausalLM, hf.GPT2LMHeadModel):
        monkeypatch.setattr(kind, "__init__", watched(kind.__init__))
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(resident.get, [str(checkpoint(name)) for name in ("llama", "gpt2")]))
    assert most == [1]


# ---- what is refused


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(3)}, folder / "pytorch_model.bin")


def vision_only(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "architectures": ["ViTModel"]}))


def other_sizes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 64, "head_dim": 16}))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def cut_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


DAMAGE = {
    only_pickled: "error.only_pickled",
    vision_only: "error.not_text",
    other_sizes: "error.weights_misfit",
    no_tokenizer: "error.no_tokenizer",
    broken_tokenizer: "error.cannot_load",
    cut_weights: "error.weights_damaged",
    missing: "error.path_missing",
}


BRACKETS = "[" * 100_000


def nested_config(folder: Path) -> None:
    (folder / "config.json").write_text(BRACKETS)


def nested_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(BRACKETS)


def nested_tokenizer_config(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(BRACKETS)


def nested_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text(BRACKETS)


def nested_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(BRACKETS)) + BRACKETS.encode() + path.read_bytes())


def pipe_for_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")  # whoever opens it waits for a writer


def pipe_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def endless_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/dev/zero")


def unknown_character(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"] |= {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[nowhere]"}
    for name in ("pre_tokenizer", "decoder", "post_processor"):
        tokenizer[name] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def adapter(folder: Path) -> None:
    said = {"peft_type": "LORA", "base_model_name_or_path": "example/base", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(said))


def lone_adapter(folder: Path) -> None:
    adapter(folder)
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "config.json").unlink()


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGE |= {
    nested_config: "error.no_config",
    nested_tokenizer: "error.cannot_load",
    nested_tokenizer_config: "error.cannot_load",
    nested_generation_config: "error.cannot_load",
    nested_header: "error.weights_damaged",
    pipe_for_a_config: "error.odd_file",
    pipe_for_weights: "error.odd_file",
    endless_tokenizer: "error.odd_file",
    unknown_character: "error.cannot_load",
    adapter: "error.adapter",
    lone_adapter: "error.adapter",
    empty: "error.no_config",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_what_cannot_be_loaded_is_a_sentence_and_the_model_before_it_stays(
    damage: object, checkpoint: Checkpoint, resident: Resident, tmp_path: Path
) -> None:
    before = resident.get(str(checkpoint("gpt2")))
    folder = tmp_path / "mine"
    shutil.copytree(checkpoint("llama"), folder)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ModelUnavailable) as refused:
        resident.get(str(folder))
    assert refused.value.key == DAMAGE[damage]  # type: ignore[index]
    assert_sentence(refused.value)
    assert resident.loaded() == [before] and resident.get(str(checkpoint("gpt2"))) is before
    assert before.forward(before.prompt(TEXT), AttentionCall()).isfinite().all()


def retold(folder: Path, file: str = "config.json", **entries: object) -> None:
    """Entries of a JSON file as they are given here."""
    said = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(said | entries))


LIES: list[tuple[str, dict[str, object], str]] = [
    ("gpt2", {"n_layer": 1_000_000}, "error.config_count"),
    ("gpt2", {"n_layer": 1e30}, "error.config_count"),
    ("gpt2", {"n_positions": 10**12}, "error.config_oversized"),
    ("gpt2", {"n_embd": 10**5}, "error.config_oversized"),
    ("gpt2", {"n_inner": 10**5}, "error.config_oversized"),
    ("gpt2", {"vocab_size": 10**12}, "error.config_oversized"),
    ("gpt2", {"num_labels": 10**9}, "error.config_count"),
    ("gpt2", {"n_head": 0}, "error.cannot_load"),
    ("gpt2", {"n_head": "four"}, "error.cannot_load"),
    ("llama", {"num_hidden_layers": 120}, "error.weights_missing"),
    ("llama", {"rms_norm_eps": "small"}, "error.cannot_load"),
    ("marian", {"decoder_start_token_id": 10**5}, "error.cannot_load"),
    ("bert", {"model_type": 10**100}, "error.unknown_architecture"),
    ("bert", {"max_position_embeddings": 10**10}, "error.config_oversized"),
    ("bart", {"decoder_layers": 10**9}, "error.config_count"),
    ("marian", {"max_position_embeddings": 10**9}, "error.config_oversized"),
    ("albert", {"num_hidden_layers": 10**6}, "error.config_count"),  # its layers share one layer's weights
]


@pytest.mark.parametrize(("name", "lie", "key"), LIES, ids=[f"{name}-{list(lie)[0]}" for name, lie, _ in LIES])
def test_a_config_that_the_weights_contradict_is_a_sentence_before_it_is_built(
    name: str, lie: dict[str, object], key: str, checkpoint: Checkpoint, resident: Resident, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(checkpoint(name), folder)
    retold(folder, **lie)
    with pytest.raises(TfvizError) as refused:
        resident.get(str(folder))
    assert refused.value.key == key
    assert_sentence(refused.value)


def test_a_pickle_is_never_opened(
    checkpoint: Checkpoint, resident: Resident, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(checkpoint("llama"), folder)
    torch.save({"weight": torch.zeros(3)}, folder / "pytorch_model.bin")
    opened: list[object] = []
    monkeypatch.setattr(torch, "load", lambda *args, **_: opened.append(args))
    assert resident.get(str(folder)).has_logits and not opened


def test_a_folder_that_was_mended_can_be_loaded(checkpoint: Checkpoint, resident: Resident, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    with pytest.raises(ModelUnavailable):
        resident.get(str(folder))
    shutil.copytree(checkpoint("llama"), folder)
    assert resident.get(str(folder)).family == "decoder"


def test_a_folder_is_found_where_it_lies_and_nothing_is_copied(checkpoint: Checkpoint, settings: Settings) -> None:
    located = locate(str(checkpoint("bert")), settings)
    assert (located.folder, located.origin, located.revision) == (checkpoint("bert"), "local", "local")
    assert not settings.cache.exists()


def test_a_text_that_ends_within_a_character_shows_its_bytes(loaded: Loaded) -> None:
    model = loaded("gpt2")
    ids = model.prompt("the cat 龘").source.ids
    assert model.decode(ids) == "the cat 龘"
    assert model.decode(ids[:-1]) == "the cat ⟨E9⟩⟨BE⟩"
    assert model.decode([*ids[:-1], *ids]) == "the cat ⟨E9⟩⟨BE⟩the cat 龘"
