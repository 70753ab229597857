"""Capture against transformers' own eager attention, on every architecture; padding, caches, threads, the bridge."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.checkpoints import ARCHITECTURES, LLAMA_LIKE, byte_level_tokenizer, sentence_piece_like_tokenizer
from tests.conftest import Checkpoint, Loaded
from tfviz.errors import TfvizError, UnknownChoice, UnsupportedHere
from tfviz.introspection.capture import Watcher, capture
from tfviz.introspection.trace import Trace
from tfviz.messages import LANGUAGES
from tfviz.model.attention import ATTENTION_KERNELS, ScoreRule, attention_weights
from tfviz.model.attention_call import AttentionCall, AttentionRecord, attention_call, current_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.huggingface import load_folder

ALL = list(ARCHITECTURES)
LONG = "The animal didn't cross the street because it was too tired"
SHORT = "the cat saw"
KERNELS = {name: ["naive"] if name == "gemma2" else ["naive", "flash"] for name in ALL}  # flash has no soft cap
EACH_KERNEL = [(name, kernel) for name in ALL for kernel in KERNELS[name]]
PADDED = [(name, kernel, side) for name, kernel in EACH_KERNEL for side in ("left", "right")]
ABSOLUTE = {"bart", "marian"}  # count positions from the first column, padding or not
Twin = Callable[[str], nn.Module]


@pytest.fixture(scope="module")
def twin(checkpoint: Checkpoint, loaded: Loaded) -> Twin:
    """The same checkpoint as transformers runs it by itself, with its eager attention."""

    def load(name: str) -> nn.Module:
        kind: Any = type(loaded(name).model)
        return kind.from_pretrained(checkpoint(name), attn_implementation="eager", dtype=torch.float32).eval()

    return cache(load)


def tolerance(name: str) -> float:
    return 1e-3 if name == "t5" else 1e-5  # T5 does not scale its scores: at this size of weights they are huge


def prompt_of(model: LoadedModel, text: str = LONG) -> Prompt:
    return model.prompt(text, SHORT if model.family == "encoder-decoder" else None)


def trace_of(model: LoadedModel, kernel: str = "naive", text: str = LONG, **options: Any) -> Trace:
    return capture(model, prompt_of(model, text), (text, None), kernel=kernel, **options)


def eager_attention(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """kind -> [layer, batch, head, query, key], as transformers returns them."""
    with torch.inference_mode():
        output = model(**inputs, output_attentions=True)
    names = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    kinds = names if "encoder_attentions" in output else {"self": "attentions"}
    return {kind: torch.stack(output[name]).numpy() for kind, name in kinds.items()}


# ---- equal to eager


@pytest.mark.parametrize("name, kernel", EACH_KERNEL)
def test_weights_equal_those_of_eager(name: str, kernel: str, loaded: Loaded, twin: Twin) -> None:
    model = loaded(name)
    expected = eager_attention(twin(name), prompt_of(model).inputs)
    trace = trace_of(model, kernel)
    assert trace.attention.keys() == expected.keys()
    for kind, weights in trace.attention.items():
        assert weights.dtype == np.float32
        assert weights.shape == expected[kind][:, 0].shape
        assert np.abs(weights - expected[kind][:, 0]).max() < tolerance(name), kind


@pytest.mark.parametrize("name, kernel", EACH_KERNEL)
def test_output_equals_that_of_eager(name: str, kernel: str, loaded: Loaded, twin: Twin) -> None:
    model = loaded(name)
    prompt = prompt_of(model)
    with torch.inference_mode():
        expected = twin(name)(**prompt.inputs)[0]
    output = model.forward(prompt, AttentionCall(kernel))
    assert float((output - expected).abs().max()) < 100 * tolerance(name) * max(1.0, float(expected.abs().max()))
    last = model.forward(prompt, AttentionCall(kernel), all_logits=False)
    torch.testing.assert_close(last[:, -1], output[:, -1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_rows_sum_to_one_and_what_is_blocked_is_zero(name: str, loaded: Loaded) -> None:
    trace = trace_of(loaded(name))
    for kind, stack in trace.stacks.items():
        for layer in stack.layers.values():
            weights = layer.weights()
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
            assert (weights[np.broadcast_to(layer.blocked, weights.shape)] == 0).all()
        assert stack.causal == (kind in {"self", "decoder"} and trace.family != "encoder")


@pytest.mark.parametrize("name", ALL)
def test_a_single_token_is_a_matrix_of_one(name: str, loaded: Loaded) -> None:
    trace = trace_of(loaded(name), text="the")
    if trace.family == "decoder":
        assert trace.attention["self"].shape[-2:] == (1, 1) and (trace.attention["self"] == 1).all()
    assert len(trace.tokens) == (1 if trace.family == "decoder" else 3 if trace.family == "encoder" else 2)


def test_repeated_tokens_keep_a_row_and_a_column_each(loaded: Loaded) -> None:
    trace = trace_of(loaded("llama"), text="the cat saw the other cat near the door")
    n = len(trace.tokens)
    assert n > len(set(trace.tokens)) and trace.attention["self"].shape[-2:] == (n, n)


# ---- shapes of each architecture


def test_grouped_heads_are_counted_and_shared(loaded: Loaded) -> None:
    stack = trace_of(loaded("llama")).stacks["self"]
    assert (stack.n_heads, stack.n_kv_heads) == (4, 2)
    assert stack.layers[0].key.shape[0] == 2 and stack.layers[0].weights().shape[0] == 4


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_unequal_stacks_have_their_own_depth_and_the_cross_map_is_target_by_source(name: str, loaded: Loaded) -> None:
    trace = trace_of(loaded(name))
    n_source, n_target = len(trace.source_tokens), len(trace.target_tokens)
    assert n_source != n_target
    assert {kind: stack.n_layers for kind, stack in trace.stacks.items()} == {"encoder": 3, "decoder": 2, "cross": 2}
    assert trace.attention["encoder"].shape == (3, 4, n_source, n_source)
    assert trace.attention["decoder"].shape == (2, 4, n_target, n_target)
    assert trace.attention["cross"].shape == (2, 4, n_target, n_source)
    cross = trace.stacks["cross"]
    assert (cross.query_tokens, cross.key_tokens) == (trace.target_tokens, trace.source_tokens)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_without_a_target_the_model_writes_one_after_its_start_token(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    trace = capture(model, model.prompt(SHORT), (SHORT, None))
    assert trace.target_written and trace.target_tokens[0].special and len(trace.target_tokens) > 1
    assert not trace_of(model).target_written


def test_albert_records_its_shared_layer_once_a_call(loaded: Loaded) -> None:
    trace = trace_of(loaded("albert"))
    layers = trace.attention["self"]
    assert len(layers) == 2 and np.abs(layers[0] - layers[1]).max() > 1e-3


def test_a_sliding_window_blocks_what_is_too_far_back(loaded: Loaded) -> None:
    stack = trace_of(loaded("mistral")).stacks["self"]
    n = len(stack.query_tokens)
    assert n > 4
    query, key = np.indices((n, n))
    for layer in stack.layers.values():
        assert (np.broadcast_to(layer.blocked, (1, n, n))[0] == ((key > query) | (key <= query - 4))).all()


def test_gemma_slides_in_some_layers_only(loaded: Loaded) -> None:
    stack = trace_of(loaded("gemma2")).stacks["self"]
    first_key_of_last_query = [bool(layer.blocked[0, -1, 0]) for layer in stack.layers.values()]
    assert set(first_key_of_last_query) == {True, False}


# ---- which layers are kept


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_only_the_layers_asked_for_are_kept(name: str, loaded: Loaded) -> None:
    whole, part = trace_of(loaded(name)), trace_of(loaded(name), layers=[1])
    for kind, stack in part.stacks.items():
        assert list(stack.layers) == [1] and stack.n_layers == whole.stacks[kind].n_layers
        np.testing.assert_array_equal(part.attention[kind][0], whole.attention[kind][1])
    assert part.nbytes < whole.nbytes


def test_layers_that_do_not_exist_are_answered_with_those_that_do(loaded: Loaded) -> None:
    with pytest.raises(ValueError, match=r"layers=\[7\]: llama has layers 0 to 2"):
        trace_of(loaded("llama"), layers=[7])


def test_a_layer_that_does_not_exist_is_not_left_out_in_silence(loaded: Loaded) -> None:
    with pytest.raises(ValueError, match="llama has layers 0 to 2"):
        trace_of(loaded("llama"), layers=[0, 7])
    assert set(trace_of(loaded("bart"), layers=[2]).stacks) == {"encoder"}  # a third layer, which the decoder lacks


def test_an_unknown_kernel_is_refused_before_anything_runs(loaded: Loaded) -> None:
    with pytest.raises(UnknownChoice, match="naive, flash"):
        trace_of(loaded("llama"), "quick")


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_thumbnails_are_made_of_every_layer_even_if_few_are_kept(name: str, loaded: Loaded) -> None:
    trace = trace_of(loaded(name), layers=[0], overview=True)
    for stack in trace.stacks.values():
        assert stack.overview is not None
        assert stack.overview.shape[:2] == (stack.n_layers, stack.n_heads)


def test_each_layer_keeps_its_own_mask_even_if_the_tensor_is_gone_by_then() -> None:
    """Masks are known by identity, and Python gives the identity of a freed tensor to the next one."""
    watcher = Watcher(set(), "self", None, overview=False)
    for i in range(6):
        mask = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
        mask[..., i] = True
        x = torch.zeros(1, 1, 6, 2)
        watcher(AttentionRecord(nn.Identity(), x, x, x, mask, ScoreRule()))
        del mask, x
    for i, layer in watcher.kept["self"].items():
        assert layer.mask is not None and layer.mask[0, 0].tolist() == [j == i for j in range(6)]


@pytest.mark.parametrize("name, masks, biases", [("mistral", 1, 0), ("gemma2", 1, 0), ("t5", 0, 2), ("llama", 0, 0)])
def test_a_mask_or_bias_that_layers_share_is_kept_once(name: str, masks: int, biases: int, loaded: Loaded) -> None:
    layers = [layer for stack in trace_of(loaded(name)).stacks.values() for layer in stack.layers.values()]
    assert len({id(layer.mask) for layer in layers if layer.mask is not None}) == masks
    kept = {id(layer.bias): layer.bias for layer in layers if layer.bias is not None}
    assert sum(bias.any() for bias in kept.values()) == biases  # cross-attention has a bias of zeros


# ---- nothing stays behind


@pytest.mark.parametrize("name", ALL)
def test_capture_leaves_no_trace_on_the_model(name: str, loaded: Loaded) -> None:
    model = loaded(name)

    def state() -> list[Any]:
        return [
            (sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks), len(module._buffers))
            for module in model.model.modules()
        ]

    prompt = prompt_of(model)
    with torch.inference_mode(), attention_call(AttentionCall("naive")):
        plain = model.model(**prompt.inputs)[0]
    weights = {key: value.clone() for key, value in model.model.state_dict().items()}
    before = state()
    trace_of(model, overview=True)
    assert state() == before
    assert all(torch.equal(value, weights[key]) for key, value in model.model.state_dict().items())
    with torch.inference_mode(), attention_call(AttentionCall("naive")):
        assert torch.equal(model.model(**prompt.inputs)[0], plain)
    assert current_call() == AttentionCall()


def test_a_call_that_fails_leaves_no_switch_behind(loaded: Loaded) -> None:
    def refuse(record: AttentionRecord) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        loaded("gpt2").forward(loaded("gpt2").prompt(SHORT), AttentionCall("naive", refuse))
    assert current_call() == AttentionCall()


# ---- what cannot be shown


def assert_sentence(error: TfvizError, key: str) -> None:
    assert error.key == key
    for language in LANGUAGES:
        assert "\n" not in error.in_language(language) and error.in_language(language).endswith((".", "。"))


def test_a_soft_cap_under_flash_is_a_sentence(loaded: Loaded) -> None:
    with pytest.raises(UnsupportedHere) as refused:
        trace_of(loaded("gemma2"), "flash")
    assert_sentence(refused.value, "error.flash_softcap")


def test_naive_writes_the_target_of_a_model_with_a_soft_cap(tmp_path: Path, quiet_transformers: None) -> None:
    import transformers as hf

    stack = hf.T5GemmaModuleConfig(**LLAMA_LIKE, head_dim=8, sliding_window=4)
    config = hf.T5GemmaConfig(encoder=stack, decoder=stack, vocab_size=LLAMA_LIKE["vocab_size"])
    config.decoder_start_token_id = 0
    hf.T5GemmaForConditionalGeneration(config).save_pretrained(tmp_path)
    sentence_piece_like_tokenizer().save_pretrained(tmp_path)
    model = load_folder(tmp_path, model_id="t5gemma", revision="local", device=torch.device("cpu"))
    trace = capture(model, model.prompt(SHORT), (SHORT, None), kernel="naive")
    assert trace.target_written and trace.attention["cross"].shape[-2:] == (len(trace.target_tokens), len(trace.tokens))


def foreign(kind: str) -> Any:
    """A tiny model of an architecture that does not call the attention transformers lets one replace."""
    import transformers as hf

    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    table: dict[str, Callable[[], Any]] = {
        "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=400, hidden_size=32, n_layer=2, n_head=4)),
        "mpt": lambda: hf.MptForCausalLM(hf.MptConfig(vocab_size=400, d_model=32, n_layers=2, n_heads=4)),
        "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(vocab_size=400, **heads)),
        "gpt-neo": lambda: hf.GPTNeoForCausalLM(
            hf.GPTNeoConfig(
                vocab_size=400, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
            )
        ),
    }
    return table[kind]()


@pytest.mark.parametrize("kind", ["bloom", "mpt", "falcon", "gpt-neo"])
def test_an_architecture_that_computes_its_attention_itself_is_a_sentence(
    kind: str, tmp_path: Path, quiet_transformers: None
) -> None:
    foreign(kind).save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(TfvizError) as refused:
        model = load_folder(tmp_path, model_id=kind, revision="local", device=torch.device("cpu"))
        capture(model, model.prompt(SHORT), (SHORT, None))
    assert_sentence(refused.value, "error.no_attention")


# ---- padded batches


def batch(model: LoadedModel, side: str) -> tuple[dict[str, Tensor], list[slice]]:
    """A long row, a short row and one of nothing but padding, as transformers' callers pass them."""
    rows = [model.prompt(text, SHORT if model.family == "encoder-decoder" else None) for text in (LONG, SHORT)]
    sizes = [row.n_tokens for row in rows]
    n = max(sizes)
    pad = getattr(model.model.config, "pad_token_id", None)
    ids = torch.full((3, n), model.tokenizer.pad_token_id if pad is None else int(pad))
    mask = torch.zeros_like(ids)
    places = [slice(n - size, n) if side == "left" else slice(0, size) for size in sizes]
    for i, (row, place) in enumerate(zip(rows, places, strict=True)):
        ids[i, place], mask[i, place] = row.inputs["input_ids"][0], 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    if model.family == "encoder-decoder":
        inputs["decoder_input_ids"] = rows[0].inputs["decoder_input_ids"].repeat(3, 1)
    elif model.model.config.model_type != "roberta":  # which counts from its pad ids by itself
        inputs["position_ids"] = positions
    return inputs, places


def watched(model: LoadedModel, inputs: dict[str, Tensor], kernel: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The output and kind -> [layer, batch, head, query, key], straight from the bridge."""
    records: list[AttentionRecord] = []
    with torch.inference_mode(), attention_call(AttentionCall(kernel, records.append)):
        output = model.model(**inputs)[0]
    weights = [attention_weights(r.query, r.key, r.mask, r.rule) for r in records]
    encoder = model.encoder_modules()
    rest = [w for r, w in zip(records, weights, strict=True) if r.module not in encoder]
    if not encoder:
        return output, {"self": torch.stack(rest)}
    seen = [w for r, w in zip(records, weights, strict=True) if r.module in encoder]
    return output, {"encoder": torch.stack(seen), "decoder": torch.stack(rest[::2]), "cross": torch.stack(rest[1::2])}


def real(weights: Tensor, kind: str, row: int, place: slice) -> Tensor:
    """[layer, head, query, key] of one batch row, without its padding."""
    rows = weights[:, row]
    return rows[..., place] if kind == "cross" else rows if kind == "decoder" else rows[..., place, place]


@pytest.mark.parametrize("name, kernel, side", PADDED)
def test_real_rows_of_a_padded_batch_equal_the_unpadded_run(name: str, kernel: str, side: str, loaded: Loaded) -> None:
    model = loaded(name)
    inputs, places = batch(model, side)
    output, weights = watched(model, inputs, kernel)
    assert output.isfinite().all()
    for row, place in enumerate(places):
        if side == "left" and name in ABSOLUTE:
            continue
        alone = {key: value[row : row + 1] for key, value in inputs.items()}
        for key in alone.keys() - {"decoder_input_ids"}:
            alone[key] = alone[key][:, place]
        plain, expected = watched(model, alone, kernel)
        mine = output[row] if model.family == "encoder-decoder" else output[row, place]
        assert float((mine - plain[0]).abs().max()) < (1e-2 if name == "t5" else 1e-4)
        for kind in weights:
            difference = real(weights[kind], kind, row, place) - expected[kind][:, 0]
            assert float(difference.abs().max()) < max(1e-4, tolerance(name)), (kind, row)


@pytest.mark.parametrize("name, kernel, side", PADDED)
def test_padded_columns_are_exactly_zero_and_a_row_of_padding_is_no_nan(
    name: str, kernel: str, side: str, loaded: Loaded
) -> None:
    model = loaded(name)
    inputs, _ = batch(model, side)
    output, weights = watched(model, inputs, kernel)
    assert output.isfinite().all()
    blocked = inputs["attention_mask"] == 0
    for kind, each in weights.items():
        assert each.isfinite().all()
        if kind == "decoder":
            continue
        for row in range(3):
            assert (each[:, row][..., blocked[row]] == 0).all(), (kind, row)
        assert (each[:, 2] == 0).all(), kind


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ALL)
def test_a_padded_batch_equals_that_of_eager(name: str, side: str, loaded: Loaded, twin: Twin) -> None:
    model = loaded(name)
    inputs, places = batch(model, side)
    expected = eager_attention(twin(name), inputs)
    _, weights = watched(model, inputs, "naive")
    for kind in weights:
        for row, place in enumerate(places):
            theirs = real(torch.from_numpy(expected[kind]), kind, row, place)
            difference = real(weights[kind], kind, row, place) - theirs
            assert float(difference.abs().max()) < tolerance(name), (kind, row)


# ---- decoding


@pytest.mark.parametrize("kernel", ["naive", "flash"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "t5"])
def test_twenty_greedy_tokens_are_the_same_with_and_without_a_cache(name: str, kernel: str, loaded: Loaded) -> None:
    model = loaded(name)
    inputs = {k: v for k, v in model.prompt(LONG).inputs.items() if k != "decoder_input_ids"}
    module: Any = model.model
    shapes: list[tuple[int, int]] = []

    def write(use_cache: bool, watch: Callable[[AttentionRecord], None] | None = None) -> tuple[list[int], Tensor]:
        with torch.inference_mode(), attention_call(AttentionCall(kernel, watch)):
            output = module.generate(
                **inputs, max_new_tokens=20, min_new_tokens=20, do_sample=False, num_beams=1, use_cache=use_cache,
                return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        return output.sequences[0].tolist(), torch.stack(output.logits)

    cached, fast = write(True, lambda r: shapes.append((r.query.shape[2], r.key.shape[2])))
    uncached, slow = write(False)
    assert cached == uncached
    assert len(slow) == 20 and float((fast - slow).abs().max()) < 1e-4 * max(1.0, float(slow.abs().max()))
    if name in {"gpt2", "llama"}:
        n = inputs["input_ids"].shape[1]
        n_layers = module.config.num_hidden_layers
        assert shapes[::n_layers] == [(n, n), *[(1, n + i) for i in range(1, 20)]]


# ---- two visitors at once


def test_two_threads_with_different_switches_never_mix(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded("llama")
    repeats = 60
    meet = threading.Barrier(2, timeout=30)
    ran: dict[int, set[str]] = {}

    def spying(kernel: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*args: Any) -> Any:
            meet.wait()  # both threads are inside an attention at this moment
            ran.setdefault(threading.get_ident(), set()).add(kernel)
            return run(*args)

        return spy

    for kernel, run in list(ATTENTION_KERNELS.items()):
        monkeypatch.setitem(ATTENTION_KERNELS, kernel, spying(kernel, run))

    def visitor(kernel: str, text: str) -> tuple[int, list[list[tuple[int, int]]]]:
        prompt, seen = model.prompt(text), []
        for _ in range(repeats):
            mine: list[tuple[int, int]] = []
            model.forward(
                prompt,
                AttentionCall(kernel, lambda r, mine=mine: mine.append((threading.get_ident(), r.query.shape[2]))),
            )
            assert current_call() == AttentionCall()
            seen.append(mine)
        return threading.get_ident(), seen

    with ThreadPoolExecutor(2) as pool:
        visits = [pool.submit(visitor, *switches) for switches in (("naive", LONG), ("flash", SHORT))]
        (first, long), (second, short) = (visit.result() for visit in visits)
    assert ran == {first: {"naive"}, second: {"flash"}}
    assert long == [[(first, model.prompt(LONG).n_tokens)] * 3] * repeats
    assert short == [[(second, model.prompt(SHORT).n_tokens)] * 3] * repeats


def test_traces_made_at_the_same_moment_equal_those_made_alone(loaded: Loaded) -> None:
    model = loaded("bart")
    jobs = [("naive", LONG), ("flash", SHORT), ("flash", LONG), ("naive", SHORT)]
    alone = [trace_of(model, kernel, text) for kernel, text in jobs]
    start = threading.Barrier(len(jobs), timeout=30)

    def visitor(kernel: str, text: str) -> list[Trace]:
        start.wait()
        return [trace_of(model, kernel, text) for _ in range(10)]

    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(lambda job: visitor(*job), jobs))
    for expected, traces in zip(alone, together, strict=True):
        for trace in traces:
            assert trace.tokens == expected.tokens and trace.kernel == expected.kernel
            for kind in expected.attention:
                np.testing.assert_allclose(trace.attention[kind], expected.attention[kind], atol=1e-6)
