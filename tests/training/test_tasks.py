"""Copy, reverse, sort: the right answers, padded right, from a seed, and never one that was held out."""

import pytest
import torch

from tfviz.errors import TfvizError
from tfviz.registry import choose
from tfviz.training.tasks import END, PAD, SPECIAL, START, TASKS, UNKNOWN, SymbolTask, Task

ANSWERS = {
    "copy": lambda word: word,
    "reverse": lambda word: "".join(reversed(word)),
    "sort": lambda word: "".join(sorted(word)),
}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=sorted(TASKS), scope="module")
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]()


@pytest.mark.parametrize("name", ANSWERS)
def test_the_target_is_the_answer(name: str) -> None:
    task = TASKS[name]()
    batch = task.batch(64, generator(0))
    for source, target in zip(batch.source.tolist(), batch.target.tolist(), strict=True):
        word = task.decode(source)
        assert task.decode(target) == ANSWERS[name](word) and word
        assert target[0] == START and target[len(word) + 1] == END
        assert not any(target[len(word) + 2 :]) and not any(source[len(word) :])


def test_a_vocabulary_starts_with_the_special_tokens_and_names_each_once(task: Task) -> None:
    assert task.vocabulary[:4] == SPECIAL == ("<pad>", "<s>", "</s>", "<unk>")
    assert len(set(task.vocabulary)) == len(task.vocabulary)
    assert list(task.vocabulary[4:]) == sorted(task.vocabulary[4:])
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)


def test_a_seed_gives_its_batches_again(task: Task) -> None:
    one, two = generator(7), generator(7)
    for _ in range(3):
        first, second = task.batch(8, one), task.batch(8, two)
        assert torch.equal(first.source, second.source) and torch.equal(first.target, second.target)
    other = task.batch(8, generator(8))
    assert other.source.shape != first.source.shape or not torch.equal(other.source, first.source)


def test_batches_of_one_seed_differ(task: Task) -> None:
    seeded = generator(1)
    first, second = task.batch(8, seeded), task.batch(8, seeded)
    assert first.source.tolist() != second.source.tolist()


def test_held_out_examples_are_the_same_for_the_same_seed(task: Task) -> None:
    assert task.held_out(20) == task.held_out(20) != task.held_out(20, seed=1)


def test_ids_are_padded_int64(task: Task) -> None:
    batch = task.batch(16, generator(2))
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert len(batch.source) == len(batch.target) == 16
    assert (batch.target[:, 0] == START).all() and ((batch.target == END).sum(1) == 1).all()
    real = batch.source != PAD
    assert (real.long().diff(dim=1) <= 0).all(), "padding stands only on the right"


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_held_out_is_never_learnt_from(name: str) -> None:
    task = SymbolTask(name, ANSWERS[name], n_symbols=3, longest=4)
    kept = {example.source for example in task.held_out(300)}
    learnt = {task.decode(row) for row in task.batch(2000, generator(3)).source.tolist()}
    assert kept and learnt and not kept & learnt
    assert len(kept) + len(learnt) == 3 + 9 + 27 + 81


def test_text_becomes_ids_and_text_again() -> None:
    task = TASKS["copy"]()
    assert task.decode([START, *task.encode("abc"), END, PAD, 5]) == "abc"
    assert task.encode("a?b") == [4, UNKNOWN, 5] and task.decode([4, UNKNOWN]) == "a<unk>"


def test_a_batch_can_be_computed_in_parts() -> None:
    batch = TASKS["copy"]().batch(10, generator(0))
    parts = batch.chunks(3)
    assert [len(part.source) for part in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([part.target for part in parts]), batch.target)


@pytest.mark.parametrize("wrong", [{"n_symbols": 1}, {"n_symbols": 53}, {"shortest": 0}, {"longest": 3}])
def test_a_task_without_enough_words_is_refused(wrong: dict) -> None:
    with pytest.raises(TfvizError, match=next(iter(wrong))):
        SymbolTask("copy", ANSWERS["copy"], **wrong)


def test_the_smallest_tasks_have_words_on_both_sides() -> None:
    task = SymbolTask("copy", ANSWERS["copy"], n_symbols=2, shortest=4, longest=4)
    assert task.held_out(3) and task.batch(3, generator(0))


def test_an_empty_batch_and_an_unknown_task_are_refused() -> None:
    with pytest.raises(TfvizError, match="n = 0"):
        TASKS["copy"]().batch(0, generator(0))
    with pytest.raises(TfvizError, match="copy, reverse, sort, dates"):
        choose(TASKS, "shuffle", "task")
