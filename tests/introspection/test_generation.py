"""A text that goes on: its numbers are those of the model's logits, and the same plan gives the same text."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from tests.checkpoints import byte_level_tokenizer
from tests.closeness import MODEL
from tests.conftest import Checkpoint, Loaded
from tfviz.config import Settings
from tfviz.errors import BadText, TfvizError, UnknownChoice, UnsupportedHere
from tfviz.inference.sampling import GREEDY, Sampling, stage_probabilities
from tfviz.introspection.beams import beam_steps
from tfviz.introspection.choice import LISTED, choose_token
from tfviz.introspection.generation import run_steps
from tfviz.introspection.grown import grown
from tfviz.introspection.lens import lens_steps
from tfviz.introspection.run import STAGE_NAMES, Plan, Run, TokenStep
from tfviz.introspection.workbench import Request, Workbench
from tfviz.messages import LANGUAGES
from tfviz.model.attention_call import AttentionCall
from tfviz.sources.base import LoadedModel, Prompt
from tfviz.sources.huggingface import load_folder
from tfviz.sources.resident import Resident
from tfviz.sources.scratch_decoding import ScratchDecoding

TEXT = "the cat sat on the mat and the dog"
DECODERS = ["gpt2", "llama", "mistral"]
WRITERS = [*DECODERS, "t5", "bart", "dates"]
WARM = Sampling(temperature=1.5, top_k=200, top_p=0.95, min_p=0.001, repetition_penalty=1.2)
Model = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def model(loaded: Loaded) -> Model:
    resident = Resident(Settings.from_environment({"TFVIZ_DEVICE": "cpu"}))
    return cache(lambda name: resident.get(name, "fp32") if name == "dates" else loaded(name))


def prompt_of(loaded: LoadedModel) -> Prompt:
    return loaded.prompt("5 mars 2024" if loaded.id == "dates" else TEXT)


def steps_of(loaded: LoadedModel, plan: Plan, **options: Any) -> list[TokenStep]:
    return list(run_steps(loaded, prompt_of(loaded), plan, **options))


def ids_of(steps: Sequence[TokenStep]) -> list[int]:
    return [step.id for step in steps]


def logits_before(loaded: LoadedModel, steps: Sequence[TokenStep]) -> torch.Tensor:
    """[step, vocabulary]: what the model gives before each new token, all of them in one pass without a cache."""
    prompt, new = prompt_of(loaded), torch.tensor([ids_of(steps)])
    name = "decoder_input_ids" if loaded.family == "encoder-decoder" else "input_ids"
    before = torch.tensor([[loaded.start_id]]) if name.startswith("decoder") else prompt.inputs[name]
    ids = torch.cat([before, new[:, :-1]], dim=1)
    inputs = prompt.inputs | {name: ids}
    if name == "input_ids":
        inputs["attention_mask"] = torch.ones_like(ids)
    return loaded.run(inputs, AttentionCall("naive"))[0, before.shape[1] - 1 :]


# ---- the numbers


@pytest.mark.parametrize("name", WRITERS)
def test_every_number_is_that_of_the_models_own_logits(model: Model, name: str) -> None:
    loaded = model(name)
    steps = steps_of(loaded, Plan(8, WARM, seed=3))
    logits = logits_before(loaded, steps)
    read = [token.id for token in steps[0].read]
    for step, z in zip(steps, logits, strict=True):
        stages = stage_probabilities(z[None], WARM, torch.tensor([read]))
        model_probs = stages["model"][0]
        assert step.prob == pytest.approx(float(model_probs[step.id]), rel=1e-5, abs=1e-5)
        assert step.drawn_prob == pytest.approx(float(stages["min_p"][0, step.id]), rel=1e-4, abs=1e-4)
        assert step.surprise == pytest.approx(-math.log(model_probs[step.id]), abs=1e-3)
        assert step.entropy == pytest.approx(float(torch.special.entr(model_probs.double()).sum()), abs=1e-3)
        for candidate in step.top:
            for stage, value in candidate.probs.items():
                assert value == pytest.approx(float(stages[stage][0, candidate.id]), rel=1e-4, abs=1e-4)
        read.append(step.id)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), WARM])
def test_the_listed_tokens_and_the_rest_are_all_there_is(model: Model, sampling: Sampling) -> None:
    for step in steps_of(model("llama"), Plan(6, sampling)):
        assert list(step.kept) == list(step.rest) == list(STAGE_NAMES)
        assert all(list(one.probs) == list(STAGE_NAMES) for one in step.top)
        for stage in STAGE_NAMES:
            assert sum(one.probs[stage] for one in step.top) + step.rest[stage] == pytest.approx(1, rel=1e-5, abs=1e-5)
            assert sum(one.probs[stage] > 0 for one in step.top) <= step.kept[stage] <= step.kept["model"]
        chances = [one.probs["model"] for one in step.top[:LISTED]]
        assert chances == sorted(chances, reverse=True) and len({one.id for one in step.top}) == len(step.top)
        assert step.id in {one.id for one in step.top} and len(step.top) in {LISTED, LISTED + 1}
        assert step.prob == next(one.probs["model"] for one in step.top if one.id == step.id)
        assert step.drawn_prob > 0
        if sampling == GREEDY:
            assert step.id == step.top[0].id and step.drawn_prob == 1 and step.kept["min_p"] == 1


def test_a_token_that_is_not_among_the_most_probable_is_listed_last() -> None:
    logits = torch.linspace(5, -5, 60)
    choice = choose_token(logits, Sampling(temperature=9), torch.tensor([0]), 0, 0, given=57)
    assert choice.listed == (*range(LISTED), 57) and choice.id == 57 != choice.drawn
    assert choice.prob == pytest.approx(float(logits.softmax(-1)[57])) == choice.probs["model"][-1]


def test_the_rest_is_what_the_others_have_and_only_what_a_stage_leaves_out_is_cut() -> None:
    logits = torch.linspace(-30, -31, 100)
    logits[3] = 0
    choice = choose_token(logits, Sampling(), torch.tensor([0]), 0, 0)
    others = logits.double().exp().sort().values[:-LISTED].sum()
    assert choice.rest["model"] == pytest.approx(float(others), rel=1e-4)  # where 1 - sum is 0 in FP32
    assert choice.kept["model"] == 100 and set(choice.cut) == {None}
    cold = choose_token(logits, Sampling(temperature=0.05, top_k=2), torch.tensor([0]), 0, 0)
    assert cold.probs["temperature"][1] == 0 == cold.rest["temperature"] and cold.kept["temperature"] == 100
    assert cold.cut[0] is None and cold.cut.count("top_k") == LISTED - cold.kept["top_k"] == LISTED - 2


def test_uniform_logits_have_the_entropy_of_their_number() -> None:
    choice = choose_token(torch.zeros(50), Sampling(), torch.tensor([0]), 0, 0)
    assert choice.entropy == pytest.approx(math.log(50), rel=1e-5) and choice.surprise == pytest.approx(math.log(50))


def test_the_surprise_of_what_has_no_probability_in_fp32_is_still_a_number() -> None:
    choice = choose_token(torch.tensor([0.0, -500.0]), Sampling(), torch.tensor([0]), 0, 0, given=1)
    assert choice.prob == 0 and choice.surprise == pytest.approx(500)


def test_a_thousand_draws_follow_the_shown_probabilities() -> None:
    """Chi-square at the 99.9 % quantile, over the places of one text as over many seeds."""
    torch.manual_seed(5)
    logits, seen, n = torch.randn(12) * 2, torch.tensor([2, 7]), 1_000
    shown = stage_probabilities(logits[None], WARM, seen[None])["min_p"][0]
    for places in ([(0, index) for index in range(n)], [(seed, 0) for seed in range(n)]):
        drawn = torch.tensor([choose_token(logits, WARM, seen, *place).id for place in places]).bincount(minlength=12)
        there = shown > 0
        assert not bool(drawn[~there].any())
        chi_square = float(((drawn - n * shown)[there].square() / (n * shown[there])).sum())
        freedom = int(there.sum()) - 1
        assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.090 * math.sqrt(2 / (9 * freedom))) ** 3


# ---- the text


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_same_plan_gives_the_same_text_with_or_without_a_cache_from_any_place(
    model: Model, name: str, sampling: Sampling
) -> None:
    loaded, plan = model(name), Plan(9, sampling, seed=11)
    whole = steps_of(loaded, plan)
    variants = [replace(plan, use_cache=False), replace(plan, kernel="naive")]
    variants += [replace(plan, path=tuple(ids_of(whole)[:n])) for n in (1, 5, 9)]
    for variant in variants:
        again = steps_of(loaded, variant)
        assert ids_of(again) == ids_of(whole)
        assert [step.drawn for step in again] == ids_of(whole)
        assert [step.forced for step in again] == [i < len(variant.path) for i in range(len(whole))]
        for one, other in zip(again, whole, strict=True):
            assert one.prob == pytest.approx(other.prob, abs=MODEL)
            assert one.entropy == pytest.approx(other.entropy, abs=1e-3)
            assert (one.read, one.said, one.text) == (other.read, other.said, other.text)
            assert (one.cache_bytes == 0) == (not variant.use_cache)


def test_another_seed_gives_another_text_and_a_longer_one_begins_alike(model: Model) -> None:
    plan = Plan(12, Sampling(2.0), seed=1)
    loaded = model("gpt2")
    whole = ids_of(steps_of(loaded, plan))
    assert ids_of(steps_of(loaded, replace(plan, seed=2))) != whole
    assert ids_of(steps_of(loaded, replace(plan, max_new_tokens=5))) == whole[:5]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_greedy_is_what_transformers_generates(model: Model, name: str) -> None:
    loaded, prompt = model(name), prompt_of(model(name))
    inputs = {key: one for key, one in prompt.inputs.items() if key != "decoder_input_ids"}
    theirs: Any = loaded.model
    inputs["eos_token_id"] = sorted(loaded.end_ids)
    ids = theirs.generate(**inputs, max_new_tokens=20, do_sample=False, repetition_penalty=1.3)[0].tolist()
    ours = ids_of(steps_of(loaded, Plan(20, Sampling(0, repetition_penalty=1.3))))
    assert ids[-len(ours) :] == ours


def test_a_branch_goes_another_way_from_the_token_that_was_taken_by_hand(model: Model) -> None:
    loaded = model("llama")
    whole = steps_of(loaded, Plan(8))
    other = whole[3].top[4].id
    branch = steps_of(loaded, Plan(8, path=(*ids_of(whole)[:3], other)))
    assert ids_of(branch)[:4] == [*ids_of(whole)[:3], other]
    assert (branch[3].drawn, branch[3].id, branch[3].forced) == (whole[3].id, other, True)
    assert [step.drawn == step.id for step in branch] == [i != 3 for i in range(8)]
    assert branch[3].prob == pytest.approx(whole[3].top[4].probs["model"], rel=1e-5, abs=1e-5)
    assert branch[3].drawn_prob == 0, "greedy gives all mass to its own choice"


def test_a_step_says_what_was_read_and_said(model: Model) -> None:
    loaded = model("llama")
    run = Run(Plan(5))
    assert (run.prompt, run.tokens, run.text, run.nbytes, run.finished) == ((), (), "", 0, False)
    for step in run_steps(loaded, prompt_of(loaded), run.plan):
        run.steps.append(step)
        assert step.said[-1] == step.token and step.token.id == step.id and len(step.said) == step.index + 1
        assert loaded.decode(ids_of(run.steps)).startswith(step.text)  # without a character that is not yet whole
        assert 0 < step.forward_seconds < step.seconds
    assert run.prompt == prompt_of(loaded).source.tokens
    assert [step.read for step in run.steps[1:]] == [(step.token,) for step in run.steps[:-1]]
    assert run.ids == tuple(ids_of(run.steps)) and run.text == run.steps[-1].text and run.finished
    assert [seen["self", 0].query.shape[1] for seen in run.seen] == [len(run.prompt), 1, 1, 1, 1]
    kept = sum(row.key.nbytes + row.value.nbytes + row.query.nbytes for seen in run.seen for row in seen.values())
    assert run.nbytes > kept
    assert run.text == loaded.decode(ids_of(run.steps))


def test_labels_at_the_end_are_those_of_the_whole_text(model: Model) -> None:
    loaded = model("llama")  # a random model of bytes: characters in pieces everywhere
    for step in steps_of(loaded, Plan(40, Sampling(3.0), seed=6)):
        assert [token.label for token in step.said] == [
            token.label for token in loaded.describe([token.id for token in step.said])
        ]


def test_a_character_in_pieces_is_text_once_it_is_whole(model: Model) -> None:
    gpt2 = model("gpt2")
    ids = gpt2.tokenizer("a 背 b", add_special_tokens=False)["input_ids"]
    made = steps_of(gpt2, Plan(max_new_tokens=len(ids) + 1, path=tuple(ids)))[: len(ids)]
    labels = [step.token.text for step in made]
    assert made[-1].text == "a 背 b" and labels.index("背") > 1
    whole = labels.index("背")
    assert not any("\ufffd" in step.text or "⟨" in step.text for step in made)
    assert all("背" not in step.text for step in made[:whole]) and "背" in made[whole].text
    taken = next(one for one in made[whole].top if one.id == made[whole].id)
    assert (taken.pieces, taken.whole) == ("E8 83 8C", "背")
    assert not any(one.whole for one in made[0].top)
    cut = steps_of(gpt2, Plan(max_new_tokens=whole, path=tuple(ids)))[-1]
    assert cut.text.endswith("⟩") and "\ufffd" not in cut.text  # the text ends in the midst of it


@pytest.mark.parametrize("name", WRITERS)
def test_a_step_of_a_path_holds_what_was_read_by_then(model: Model, name: str) -> None:
    one_by_one = steps_of(model(name), Plan(max_new_tokens=8))
    path = steps_of(model(name), Plan(max_new_tokens=8, path=tuple(ids_of(one_by_one))))
    assert [step.cache_bytes for step in path] == [step.cache_bytes for step in one_by_one]


def test_nothing_is_recorded_unless_asked_for(model: Model) -> None:
    loaded = model("gpt2")
    assert all(step.seen is None for step in steps_of(loaded, Plan(3), record=False))
    assert all(step.seen is None for step in steps_of(loaded, Plan(3, use_cache=False)))


def test_an_encoder_decoder_begins_at_its_start_token_whatever_target_was_traced(model: Model) -> None:
    loaded = model("dates")
    typed = list(run_steps(loaded, loaded.prompt("5 mars 2024", "1999"), Plan(16)))
    assert ids_of(typed) == ids_of(steps_of(loaded, Plan(16)))
    assert typed[-1].text == "2024-03-05" and typed[-1].stopped == "end" and typed[-1].token.special
    assert [token.id for token in typed[0].read] == [loaded.start_id]


# ---- streaming and its end


def test_a_step_is_out_before_the_next_is_computed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, passes = model("dates"), list[bool]()
    logits = ScratchDecoding.logits

    def counted(self: ScratchDecoding) -> torch.Tensor:
        passes.append(True)
        return logits(self)

    monkeypatch.setattr(ScratchDecoding, "logits", counted)
    steps = run_steps(loaded, prompt_of(loaded), Plan(8))
    assert not passes
    for n in range(1, 4):
        next(steps)
        assert len(passes) == n
        assert not torch.is_inference_mode_enabled(), "what the caller does between two steps is the caller's"
    steps.close()  # type: ignore[attr-defined]
    assert len(passes) == 3


def test_steps_may_run_in_different_threads(model: Model) -> None:
    from concurrent.futures import ThreadPoolExecutor

    loaded = model("mistral")
    steps = run_steps(loaded, prompt_of(loaded), Plan(6, WARM))
    ids = []
    for _ in range(6):
        with ThreadPoolExecutor(1) as pool:
            ids.append(pool.submit(next, steps).result().id)
    assert ids == ids_of(steps_of(loaded, Plan(6, WARM)))


def test_the_workbench_streams_a_plan(settings: Settings) -> None:
    from functools import partial

    bench = Workbench(settings)
    trace_id, _ = bench.trace(Request("5 mars 2024", None, "dates"))
    steps = list(bench.stream(trace_id, partial(run_steps, plan=Plan(4))))
    assert steps[-1].text == "2024" and [step.stopped for step in steps] == [None, None, None, "max_new_tokens"]


def test_every_end_token_ends_the_text(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = model("gpt2")
    free = ids_of(steps_of(loaded, Plan(8, WARM)))
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", [99_999, free[4]])
    first = free.index(free[4])
    assert loaded.end_ids == {99_999, free[4], loaded.tokenizer.eos_token_id}
    steps = steps_of(loaded, Plan(8, WARM))
    assert ids_of(steps) == free[: first + 1] and steps[-1].stopped == "end" and steps[-1].limit is None
    in_path = steps_of(loaded, Plan(8, WARM, path=tuple(free)))
    assert ids_of(in_path) == free[: first + 1] and in_path[-1].stopped == "end", "nothing follows an end token"


def test_end_tokens_are_all_that_the_checkpoint_names_anywhere(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = model("gpt2")  # its class says 50,256, which the folder's files repeat
    own = loaded.tokenizer.eos_token_id
    assert loaded.end_ids == {own}
    monkeypatch.setattr(loaded.model.config, "eos_token_id", 5)
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", [7, 8])
    assert loaded.end_ids == {5, 7, 8, own}
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", None)
    assert loaded.end_ids == {5, own}
    dates: Any = model("dates")
    assert dates.end_ids == {dates.transformer.config.end_id}


def test_an_end_token_that_only_the_tokenizer_names_ends_the_text(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    shutil.copytree(checkpoint("llama"), folder)
    _name_ends(folder, config=399, generation=399)
    before = read_folder(folder)
    free = ids_of(steps_of(before, Plan(12)))
    read = {token.id for token in prompt_of(before).source.tokens}
    unused = next(one for one in range(300, 400) if one not in free)
    k, end = next((i, one) for i, one in enumerate(free) if i >= 3 and one not in free[:3] and one not in read)
    for generation in (unused, [unused, 99_999]):
        _name_ends(folder, config=unused, generation=generation, tokenizer=before.tokenizer.convert_ids_to_tokens(end))
        loaded = read_folder(folder)
        steps = steps_of(loaded, Plan(12))
        assert ids_of(steps) == free[: k + 1] and steps[-1].stopped == "end" and steps[-1].token.special
        assert loaded.end_ids == {unused, end} | ({99_999} if isinstance(generation, list) else set())
        *_, tree = beam_steps(loaded, prompt_of(loaded), n_beams=1, max_new_tokens=12)
        assert tree.found[0].ids == tuple(free[: k + 1]) and tree.found[0].finished


def test_a_token_that_only_the_model_has_is_labelled_and_says_nothing(tmp_path: Path) -> None:
    """Vocabularies are often padded beyond what the tokenizer knows."""
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=400, n_positions=64, n_embd=32, n_layer=1, n_head=4))
    with torch.no_grad():  # whatever is read, the last vector is all ones, and so is one row of the tied head
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.transformer.wte.weight[390] = 1.0
    model.save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    loaded = read_folder(tmp_path)
    prompt = prompt_of(loaded)
    steps = list(run_steps(loaded, prompt, Plan(3)))
    assert ids_of(steps) == [390] * 3 and {step.text for step in steps} == {""}
    assert {step.token.label for step in steps} == {"⟨390⟩"} == {step.top[0].label for step in steps}
    assert ids_of(list(run_steps(loaded, prompt, Plan(3, path=(5, 390))))) == [5, 390, 390]
    seen, _ = grown(loaded, prompt, Run(Plan(3), steps))
    assert seen.tokens[-2:] == ["⟨390⟩"] * 2
    *_, lens = lens_steps(loaded, prompt, 0, prompt.n_tokens, "naive")
    assert lens.labels[int(lens.ids[-1, 0, 0])] == "⟨390⟩"
    *_, tree = beam_steps(loaded, prompt, n_beams=2, max_new_tokens=2)
    assert tree.found[0].text == "" and tree.nodes[1].label == "⟨390⟩"


def _name_ends(folder: Path, *, config: int, generation: int | list[int], tokenizer: str | None = None) -> None:
    """Writes end tokens into the folder's three files."""
    names: dict[str, Any] = {"config.json": config, "generation_config.json": generation}
    if tokenizer is not None:
        names["tokenizer_config.json"] = tokenizer
    for name, value in names.items():
        path = folder / name
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["eos_token" if name.startswith("tokenizer") else "eos_token_id"] = value
        path.write_text(json.dumps(settings), encoding="utf-8")


def read_folder(folder: Path) -> LoadedModel:
    return load_folder(folder, model_id=folder.name, revision="local", device=torch.device("cpu"))


def test_the_last_position_ends_the_text_with_a_sentence(model: Model) -> None:
    loaded = model("gpt2")  # 64 positions
    prompt = loaded.prompt(TEXT * 20)
    assert prompt.n_tokens == 64
    steps = list(run_steps(loaded, prompt, Plan(8)))
    assert len(steps) == 1, "the last token that is said need not be read"
    assert (steps[0].stopped, steps[0].limit) == ("max_positions", 64)
    shorter = list(run_steps(loaded, loaded.prompt(TEXT * 20, limit=60), Plan(30, path=(5,) * 30)))
    assert len(shorter) == 5 and shorter[-1].stopped == "max_positions" and shorter[-1].forced


def test_each_ending_is_a_sentence_in_both_languages(model: Model) -> None:
    step = steps_of(model("gpt2"), Plan(1))[0]
    assert step.stopped == "max_new_tokens" and "New tokens: 1" in step.reason() and step.reason("zh") != step.reason()
    assert replace(step, stopped=None).reason() == ""
    for reason in ("end", "max_positions"):
        ended = replace(step, stopped=reason, limit=77)
        assert len({ended.reason(language) for language in LANGUAGES}) == 2
        assert ("77" in ended.reason()) == (reason == "max_positions")


# ---- what cannot be


@pytest.mark.parametrize("name", ["bert", "bert-mlm"])
def test_a_model_that_writes_no_text_says_so(model: Model, name: str) -> None:
    with pytest.raises(BadText, match="writes no text"):
        steps_of(model(name), Plan())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_new_tokens", value) for value in (0, -1, 2.5, True, "3")],
        *[("seed", value) for value in (-1, 2**63, 1.0, None, True)],
        *[("path", value) for value in ([1], (1.5,), (-1,), "12", (True,))],
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_both_languages(name: str, value: object) -> None:
    with pytest.raises(TfvizError) as refused:
        Plan(**{name: value})  # type: ignore[arg-type]
    assert all(name in refused.value.in_language(language) for language in LANGUAGES)
    assert refused.value.in_language("zh") != str(refused.value)


def test_an_unknown_kernel_or_id_is_refused(model: Model) -> None:
    with pytest.raises(UnknownChoice, match="quick"):
        Plan(kernel="quick")
    for name in ("gpt2", "dates"):
        with pytest.raises(TfvizError, match="path holds the id 99999"):
            steps_of(model(name), Plan(path=(99_999,)))


def test_a_chat_needs_a_template(model: Model) -> None:
    with pytest.raises(BadText):
        steps_of(model("gpt2"), Plan(chat=True))


def test_a_chat_reads_the_template_with_what_was_typed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = model("llama")
    template = "A:{% for message in messages %}{{ message.content }}{% endfor %}B:"
    monkeypatch.setattr(loaded.tokenizer, "chat_template", template)
    steps = list(run_steps(loaded, loaded.prompt(TEXT), Plan(3, chat=True)))
    assert loaded.decode([token.id for token in steps[0].read]) == f"A:{TEXT}B:"


def test_logits_that_are_no_numbers_are_said(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: Any = model("gpt2")
    monkeypatch.setattr(loaded.model.lm_head, "forward", lambda x: torch.full((*x.shape[:-1], 320), math.nan))
    with pytest.raises(UnsupportedHere, match="NaN or infinite values, first in lm_head"):
        steps_of(loaded, Plan(2))
