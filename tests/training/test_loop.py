"""The loop: one record a step, the same step however it is computed, the same run however often it is stopped."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from tests.closeness import SUM, difference
from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError, UnsupportedHere
from tfviz.model import Transformer
from tfviz.training.loop import Recipe, Record, Run, train
from tfviz.training.schedule import noam_lr
from tfviz.training.tasks import TASKS, Batch, SymbolTask, Task

RECIPE = Recipe(steps=6, batch_size=12, warmup_steps=4, seed=3)


def tiny(task: Task, seed: int = 0, **changed: object) -> Transformer:
    torch.manual_seed(seed)
    shape = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 1, "dropout": 0.0}
    return Transformer(TransformerConfig(**{"vocab_size": len(task.vocabulary)} | shape | changed))


@pytest.fixture(scope="module")
def task() -> Task:
    return SymbolTask("copy", lambda word: word, n_symbols=6, longest=6)


def lasting(records: list[Record]) -> list[dict]:
    """Records without what a clock says."""
    clock = ("seconds", "tokens_per_second")
    return [{k: v for k, v in dataclasses.asdict(record).items() if k not in clock} for record in records]


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_copying_is_learnt_in_seconds() -> None:
    task = TASKS["copy"]()
    model = tiny(task, d_model=64, d_ff=128)
    records = list(train(model, task, Recipe(steps=250, batch_size=64, warmup_steps=60, smoothing=0.0)))
    first, last = records[0], records[-1]
    assert first.loss > 2.5 and last.loss < first.loss / 4 and last.accuracy > 0.85
    assert math.isclose(first.loss, math.log(len(task.vocabulary)), rel_tol=0.6), "at first it guesses"


def test_a_record_says_what_its_step_was_like(task: Task) -> None:
    records = list(train(tiny(task), task, RECIPE))
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    for record in records:
        assert record.learning_rate == noam_lr(record.step, 32, 4)
        assert record.loss > 0 and record.gradient_norm > 0 and 0 <= record.accuracy <= 1
        assert record.seconds > 0 and record.tokens_per_second > 0


def test_with_decay_the_rate_ends_at_zero(task: Task) -> None:
    rates = [r.learning_rate for r in train(tiny(task), task, dataclasses.replace(RECIPE, decay=True, scale=0.5))]
    assert rates[:3] == [0.5 * noam_lr(step, 32, 4) for step in (1, 2, 3)]
    assert rates[3] == pytest.approx(0.5 * noam_lr(4, 32, 4) * 2 / 3) and rates[-1] == 0


@pytest.mark.parametrize("parts", [2, 3, 12])
@pytest.mark.parametrize("over", ["all", "allowed"])
def test_an_accumulated_step_is_the_step_of_the_big_batch(task: Task, parts: int, over: str) -> None:
    """Though words differ in length, so that the parts hold different numbers of real tokens."""
    recipe = dataclasses.replace(RECIPE, smoothing_over=over)
    gradients, losses = [], []
    for accumulate in (1, parts):
        run = Run(tiny(task), task, dataclasses.replace(recipe, accumulate=accumulate))
        batch = task.batch(12, torch.Generator().manual_seed(5))
        assert len(set((batch.target != 0).sum(1).tolist())) > 2
        losses.append(run._gradients(batch))
        gradients.append({name: p.grad.clone() for name, p in run.model.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], rel=SUM)
    ours, theirs = (torch.cat([one.flatten() for one in every.values()]) for every in gradients)
    assert difference(ours, theirs) < SUM


def test_a_part_of_short_words_does_not_count_as_much_as_one_of_long(task: Task) -> None:
    run = Run(tiny(task), task, dataclasses.replace(RECIPE, accumulate=2, batch_size=2, smoothing=0.0))
    model = run.model.eval()
    batch = Batch(torch.tensor([[4, 0, 0], [5, 6, 7]]), torch.tensor([[1, 4, 2, 0, 0], [1, 5, 6, 7, 2]]))
    log_p = model(batch.source, batch.target[:, :-1]).log_softmax(-1)
    real = batch.target[:, 1:] != 0
    expected = -log_p.gather(-1, batch.target[:, 1:, None])[..., 0][real].mean()
    assert run._gradients(batch)[0] == pytest.approx(expected.item(), rel=SUM)


def test_the_gradient_is_clipped_and_its_length_before_that_recorded(task: Task) -> None:
    seen = []
    for limit in (None, 0.01):
        run = Run(tiny(task), task, dataclasses.replace(RECIPE, clip_norm=limit))
        step = run.optimizer.step

        def watched(*args: object, run: Run = run, step=step, **kwargs: object) -> object:
            seen.append(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]).item())
            return step(*args, **kwargs)

        run.optimizer.step = watched
        record = run.advance()
        assert record.gradient_norm > 0.1
        seen.append(record.gradient_norm)
    free, free_recorded, clipped, clipped_recorded = seen
    assert free == pytest.approx(free_recorded) and clipped_recorded == pytest.approx(free_recorded)
    assert clipped == pytest.approx(0.01, rel=1e-3)


def test_a_seed_gives_its_run_again_whatever_was_drawn_between(task: Task) -> None:
    runs = []
    for seed in (3, 3, 4):
        model = tiny(task, dropout=0.2)
        recipe = dataclasses.replace(RECIPE, seed=seed)
        records = []
        for record in train(model, task, recipe):
            torch.rand(record.step)
            records.append(record)
        runs.append((lasting(records), weights(model)))
    assert runs[0][0] == runs[1][0] != runs[2][0]
    assert_same(runs[0][1], runs[1][1])


def test_training_leaves_the_random_numbers_of_others_alone(task: Task) -> None:
    run = Run(tiny(task, dropout=0.2), task, RECIPE)
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    run.advance()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_stopped_and_resumed_run_is_the_run_that_was_never_stopped(task: Task, stop: int, tmp_path: Path) -> None:
    whole = tiny(task, dropout=0.2)
    expected = lasting(list(train(whole, task, RECIPE)))

    first = Run(tiny(task, dropout=0.2), task, RECIPE)
    records = []
    for record in first:
        records.append(record)
        if record.step == stop:
            first.save(tmp_path / "a" / "run.pt")
            break
    second = Run(tiny(task, seed=99, dropout=0.2), task, RECIPE)
    second.load(tmp_path / "a" / "run.pt")
    records += list(second)
    assert lasting(records) == expected
    assert_same(weights(second.model), weights(whole))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run.pt"]


def test_a_closed_run_leaves_a_whole_model(task: Task) -> None:
    model = tiny(task).eval()
    records = train(model, task, RECIPE)
    next(records)
    records.close()
    assert not model.training and all(p.grad is None for p in model.parameters())
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_model_is_in_its_own_mode_between_steps(task: Task) -> None:
    for training in (True, False):
        model = tiny(task).train(training)
        assert all(model.training == training for _ in train(model, task, RECIPE))


def test_bfloat16_computes_in_halves_and_keeps_whole_weights(task: Task) -> None:
    first, model = tiny(task), tiny(task)
    expected = next(train(first, task, RECIPE))
    record = next(train(model, task, dataclasses.replace(RECIPE, precision="bf16")))
    assert record.loss != expected.loss and record.loss == pytest.approx(expected.loss, rel=0.05)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_float16_is_refused_on_the_cpu_in_a_sentence(task: Task) -> None:
    with pytest.raises(UnsupportedHere, match="CUDA.*cpu.*BF16"):
        Run(tiny(task), task, dataclasses.replace(RECIPE, precision="fp16"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_learns_on_a_gpu_as_fp32_does(task: Task, precision: str, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, steps=80, batch_size=64, warmup_steps=40)
    whole = list(train(tiny(task).cuda(), task, recipe))
    run = Run(tiny(task).cuda(), task, dataclasses.replace(recipe, precision=precision))
    half = list(run)
    assert half[-1].loss < half[0].loss / 1.5 and half[-1].loss == pytest.approx(whole[-1].loss, rel=0.2)
    run.save(tmp_path / "run.pt")
    Run(tiny(task).cuda(), task, run.recipe).load(tmp_path / "run.pt")


def test_a_run_that_diverges_stops_with_the_weights_it_had(task: Task) -> None:
    model = tiny(task)
    run = Run(model, task, RECIPE)
    run.advance()
    before = weights(model)
    run.loss = lambda logits, targets: logits.sum() * math.inf
    with pytest.raises(TfvizError, match="step 2"):
        run.advance()
    assert_same(before, weights(model))
    assert run.step == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"batch_size": 0},
        {"warmup_steps": 0},
        {"scale": 0.0},
        {"scale": math.inf},
        {"smoothing": 1.0},
        {"clip_norm": 0.0},
        {"accumulate": 0},
        {"accumulate": 13},
        {"eps": 0.0},
        {"seed": -1},
    ],
)
def test_a_number_that_makes_no_recipe_is_refused_by_name_and_value(wrong: dict) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(TfvizError) as refused:
        dataclasses.replace(RECIPE, **wrong)
    for language in ("en", "zh"):
        assert name in refused.value.in_language(language) and str(value) in refused.value.in_language(language)


@pytest.mark.parametrize(
    "wrong, choices",
    [
        ({"precision": "int8"}, "fp32, bf16, fp16"),
        ({"schedule": "none"}, "noam"),
        ({"smoothing_over": "x"}, "all, allowed"),
        ({"betas": (1.0, 0.98)}, "beta1 = 1.0"),
        ({"betas": (0.9, -0.1)}, "beta2 = -0.1"),
    ],
)
def test_a_word_that_makes_no_recipe_is_answered_with_those_that_do(wrong: dict, choices: str) -> None:
    with pytest.raises(TfvizError, match=choices):
        dataclasses.replace(RECIPE, **wrong)


def test_a_model_that_does_not_fit_its_task_is_refused(task: Task) -> None:
    with pytest.raises(TfvizError, match="10 tokens.*8"):
        Run(tiny(task, vocab_size=8), task, RECIPE)
    with pytest.raises(TfvizError, match="decoder only"):
        Run(tiny(task, n_encoder_layers=0), task, RECIPE)


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    Run(tiny(task), task, RECIPE).save(path)
    with pytest.raises(TfvizError, match="seed"):
        Run(tiny(task), task, dataclasses.replace(RECIPE, seed=4)).load(path)
    with pytest.raises(TfvizError, match="config"):
        Run(tiny(task, d_model=16), task, RECIPE).load(path)


@pytest.mark.parametrize("content", [None, b"", b"no checkpoint"])
def test_a_file_that_is_no_checkpoint_is_refused_in_a_sentence(
    task: Task, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "run.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TfvizError, match="run.pt"):
        Run(tiny(task), task, RECIPE).load(path)


def test_a_recipe_is_kept_as_json() -> None:
    assert json.loads(json.dumps(RECIPE.to_dict())) == RECIPE.to_dict()
