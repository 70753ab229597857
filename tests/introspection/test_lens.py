"""The logit lens reads every layer as the model reads its last one, on any architecture; its numbers are right."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.errors import WrongModel
from tfviz.introspection import lens as lens_module
from tfviz.introspection.lens import Lens, lens_steps
from tfviz.model.attention_call import AttentionCall, attention_call
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.catalog import CATALOG
from tfviz.sources.scratch import load

TEXT = "the cat saw the other cat near the door"
WITH_HEAD = [name for name in ARCHITECTURES if name != "bert"]


def asked(model: LoadedModel) -> Prompt:
    return model.prompt(TEXT, "the cat" if model.family == "encoder-decoder" else None)


def lens(model: LoadedModel, first: int = 0, end: int | None = None) -> Lens:
    prompt = asked(model)
    *_, last = lens_steps(model, prompt, first, end or len(prompt.target) or prompt.n_tokens, "naive")
    return last


@pytest.mark.parametrize("name", WITH_HEAD)
def test_the_last_row_is_the_models_own_answer(loaded: Loaded, name: str) -> None:
    model = loaded(name)
    seen = lens(model)
    own = model.forward(asked(model), AttentionCall("naive"))[0].float().log_softmax(-1)
    top = own.topk(10)
    np.testing.assert_array_equal(seen.ids[-1], top.indices.numpy())
    np.testing.assert_allclose(seen.log_probs[-1], top.values.numpy(), atol=1e-5)
    np.testing.assert_allclose(seen.entropy[-1], -(own.exp() * own).sum(-1).numpy(), atol=1e-4)
    assert seen.gap < 1e-5 and (seen.ranks[-1] == 1).all() and np.abs(seen.kl[-1]).max() < 1e-6


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "gemma2", "bert-mlm"])
def test_a_layer_below_is_read_by_the_same_norm_and_head(loaded: Loaded, name: str) -> None:
    """Against transformers' own hidden states, put through the parts by hand."""
    model = loaded(name)
    prompt = asked(model)
    hf: Any = model.model
    with torch.inference_mode(), attention_call(AttentionCall("naive")):
        output = hf(**prompt.inputs, output_hidden_states=True)
        hidden = output.decoder_hidden_states if name == "t5" else output.hidden_states
        for row in range(len(hidden) - 1):
            x = hidden[row]
            if name == "llama":
                logits = hf.lm_head(hf.model.norm(x))
            elif name == "gpt2":
                logits = hf.lm_head(hf.transformer.ln_f(x))
            elif name == "t5":
                logits = hf.lm_head(hf.decoder.final_layer_norm(x) * hf.config.d_model**-0.5)
            elif name == "gemma2":
                logits = hf.lm_head(hf.model.norm(x))
                logits = torch.tanh(logits / hf.config.final_logit_softcapping) * hf.config.final_logit_softcapping
            else:
                logits = hf.cls(x)
            log_probs = logits[0].log_softmax(-1).topk(10).values.numpy()
            np.testing.assert_allclose(lens(model).log_probs[row], log_probs, atol=1e-4)


def test_numbers_are_those_of_their_definitions(loaded: Loaded) -> None:
    model = loaded("llama")
    seen = lens(model)
    hf: Any = model.model
    with torch.inference_mode():
        hidden = hf(**asked(model).inputs, output_hidden_states=True).hidden_states
        log_p = hf.lm_head(hf.model.norm(hidden[1]))[0].log_softmax(-1).numpy()
        final = hf(**asked(model).inputs).logits[0].log_softmax(-1).numpy()
    best = final.argmax(-1)
    np.testing.assert_array_equal(seen.final, best)
    for i, token in enumerate(best):
        assert seen.ranks[1, i] == 1 + int((log_p[i] > log_p[i, token]).sum())
        assert seen.final_log_probs[1, i] == pytest.approx(log_p[i, token], rel=1e-4, abs=1e-4)
    kl = (np.exp(final) * (final - log_p)).sum(-1)  # KL(final || layer), not the other way round
    np.testing.assert_allclose(seen.kl[1], kl, atol=1e-3)
    np.testing.assert_allclose(seen.entropy[1], -(np.exp(log_p) * log_p).sum(-1), atol=1e-3)


def test_models_that_end_every_layer_with_a_norm_are_known_by_it(loaded: Loaded) -> None:
    ends = {name: lens(loaded(name)).normed for name in ("llama", "gpt2", "gemma2", "t5", "bert-mlm", "bart")}
    assert ends == {"llama": False, "gpt2": False, "gemma2": False, "t5": False, "bert-mlm": True, "bart": True}


def test_what_runs_after_the_last_layer_is_named(loaded: Loaded) -> None:
    assert lens(loaded("llama")).after == ("model.norm", "lm_head")
    assert lens(loaded("bert-mlm")).after[-1] == "cls.predictions.decoder"


def test_our_own_models_are_read_too() -> None:
    model = load(CATALOG["dates"], torch.device("cpu"))
    prompt = model.prompt("March 5, 2021")
    *_, seen = lens_steps(model, prompt, 0, len(prompt.target))
    assert [seen.labels[int(one)] for one in seen.final] == [*"2021-03-05", "</s>"]
    assert seen.normed and seen.after == ("output",) and seen.layers == (0, 1) and seen.gap < 1e-5


def test_a_window_shows_the_same_numbers_as_the_whole(loaded: Loaded) -> None:
    whole, part = lens(loaded("llama")), lens(loaded("llama"), 2, 5)
    assert part.first == 2
    np.testing.assert_array_equal(part.ids, whole.ids[:, 2:5])
    np.testing.assert_allclose(part.kl, whole.kl[:, 2:5], atol=1e-4)


def test_rows_come_from_the_top_and_stay_as_they_were(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lens_module, "CHUNK", 1)  # a layer a step
    model, prompt = loaded("llama"), asked(loaded("llama"))
    steps = list(lens_steps(model, prompt, 0, prompt.n_tokens))
    assert [step.begun for step in steps] == [3, 2, 1, 0] and steps[-1].done
    for before, after in zip(steps, steps[1:], strict=False):
        np.testing.assert_array_equal(before.ranks, after.ranks[1:])
    assert {int(one) for one in steps[-1].ids.ravel()} <= steps[-1].labels.keys()


def test_a_lens_that_was_left_goes_on_where_it_was(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lens_module, "CHUNK", 1)
    model, prompt = loaded("llama"), asked(loaded("llama"))
    whole = list(lens_steps(model, prompt, 0, prompt.n_tokens))
    rest = list(lens_steps(model, prompt, 0, prompt.n_tokens, had=whole[1]))
    assert [step.begun for step in rest] == [2, 1, 0] and rest[-1].labels == whole[-1].labels
    for name in ("ids", "ranks", "kl", "entropy", "log_probs", "final_log_probs", "own_log_probs"):
        np.testing.assert_array_equal(getattr(rest[-1], name), getattr(whole[-1], name))


def test_of_a_long_text_only_what_the_pass_gave_is_compared(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lens_module, "WHOLE", 4)
    model = loaded("llama")
    n = asked(model).n_tokens
    assert len(lens(model, 0, 3).own_ids) == 0
    at_end = lens(model, n - 3, n)
    assert len(at_end.own_ids) == 1 and at_end.gap < 1e-5
    np.testing.assert_array_equal(at_end.own_ids[0], at_end.ids[-1, -1])


def test_a_changed_end_of_the_model_is_noticed(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is one: rows that are not the model's give another answer."""
    through = lens_module._through

    def other(*args: object) -> torch.Tensor:
        return through(*args) * 1.01  # type: ignore[arg-type]

    monkeypatch.setattr(lens_module, "_through", other)
    assert lens(loaded("llama")).gap > 1e-3


def test_a_model_without_a_head_is_refused_in_a_sentence(loaded: Loaded) -> None:
    with pytest.raises(WrongModel, match="output head"):
        lens(loaded("bert"))


def test_labels_are_whole_though_ids_stand_beside_each_other(loaded: Loaded) -> None:
    model = loaded("llama")
    labels: dict[int, str] = {}
    ids = np.array(model.tokenizer("国 国", add_special_tokens=False)["input_ids"])
    lens_module._name(model, ids, labels)
    assert all(labels.values()) and replace(lens(model), labels=labels).nbytes > 0


def test_tokens_that_a_head_rules_out_leave_every_number_finite() -> None:
    out = -torch.inf
    final, below = torch.tensor([[2.0, 1.0, out]]).log_softmax(-1), torch.tensor([[1.0, 3.0, out]]).log_softmax(-1)
    *_, rank, kl, entropy = lens_module._tell(below, final)
    p, q = final[0, :2].exp(), below[0, :2].exp()
    assert kl[0] == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-6)
    assert entropy[0] == pytest.approx(float(-(q * q.log()).sum()), abs=1e-6) and rank[0] == 2
    assert lens_module._gap(final, final) == 0 and lens_module._gap(final + 0.1, final) > 0.01
