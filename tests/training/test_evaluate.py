"""Greedy decoding and exact match: by hand, and on the dates model that ships."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tfviz.config import TransformerConfig
from tfviz.errors import TfvizError
from tfviz.model import KVCache, Transformer
from tfviz.training import weights
from tfviz.training.dates import DateTask
from tfviz.training.evaluate import exact_match, greedy
from tfviz.training.tasks import END, START, SymbolTask, Task
from tfviz.training.train_dates import SHIPPED, main

SHAPE = {"d_model": 32, "d_ff": 64, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 2, "dropout": 0.1}


@pytest.fixture(scope="module")
def task() -> Task:
    return SymbolTask("copy", lambda word: word, n_symbols=6, longest=6)


@pytest.fixture(scope="module")
def model(task: Task) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocab_size=len(task.vocabulary), **SHAPE)).eval()


@torch.no_grad()
def test_greedy_takes_the_likeliest_token_of_the_whole_pass(task: Task, model: Transformer) -> None:
    source = task.collate(task.held_out(8)).source
    ids, log_prob = greedy(model, source, max_new_tokens=7)
    target = torch.cat([torch.full((8, 1), START), ids], dim=1)
    log_p = model(source, target[:, :-1]).log_softmax(-1)
    for row in range(8):
        n = ids[row].tolist().index(END) + 1 if END in ids[row] else ids.shape[1]
        assert ids[row, :n].tolist() == log_p[row, :n].argmax(-1).tolist()
        assert log_prob[row].item() == pytest.approx(log_p[row, :n].max(-1).values.sum().item(), rel=1e-4, abs=1e-4)
        assert (ids[row, n:] == END).all()


class Scripted(Transformer):
    """Says `script[step][row]` with certainty, whatever it reads."""

    script: list[list[int]]

    def decode(self, ids: torch.Tensor, *args: object, cache: KVCache, **kwargs: object) -> torch.Tensor:
        step, cache.length = cache.length, cache.length + 1
        logits = torch.full((len(ids), 1, self.config.vocab_size), -1000.0)
        return logits.scatter(2, torch.tensor(self.script[step])[:, None, None], 1000.0)


def test_greedy_stops_when_every_row_has_ended_or_at_its_limit(model: Transformer) -> None:
    scripted, source = Scripted(model.config), torch.full((2, 1), 4)
    scripted.script = [[5, 6], [END, 7], [8, END], [9, 9]]
    ids, log_prob = greedy(scripted, source)
    assert ids.tolist() == [[5, END, END], [6, 7, END]] and log_prob.tolist() == [0, 0]
    assert greedy(scripted, source, max_new_tokens=2)[0].tolist() == [[5, END], [6, 7]]
    with pytest.raises(TfvizError, match="max_new_tokens"):
        greedy(scripted, source, 0)


def test_a_batch_is_scored_as_its_examples_one_by_one(task: Task, model: Transformer) -> None:
    examples = task.held_out(12)
    together = exact_match(model, task, examples)
    alone = [exact_match(model, task, [example], batch_size=1) for example in examples]
    assert sorted(text for _, text in together.wrong) == sorted(text for score in alone for _, text in score.wrong)


def test_the_score_counts_by_group_and_shows_what_was_written(task: Task, model: Transformer) -> None:
    examples = task.held_out(10)
    written = {example: text for example, text in exact_match(model, task, examples).wrong}
    right = [replace(example, target=text, group="a") for example, text in written.items()]
    wrong = [replace(example, target="?", group="b") for example in written]
    score = exact_match(model, task, right + wrong)
    n = len(written)
    assert n and score.by_group == {"a": (n, n), "b": (0, n)} and (score.right, score.n) == (n, 2 * n)
    assert score.exact == 0.5 and len(score.wrong) == n
    assert score.to_dict() == {"exact": 0.5, "by_group": {"a": 1.0, "b": 0.0}, "n": 2 * n}


def test_the_model_is_evaluated_without_dropout_and_left_in_its_mode(task: Task, model: Transformer) -> None:
    examples = task.held_out(6)
    model.train()
    first = exact_match(model, task, examples)
    assert model.training and first == exact_match(model, task, examples)
    model.eval()


def test_nothing_to_score_is_refused(task: Task, model: Transformer) -> None:
    with pytest.raises(TfvizError, match="examples"):
        exact_match(model, task, [])


# ---- the file


def test_weights_are_written_once_each_in_fp16_and_read_back(model: Transformer, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    halves = weights.rounded(model)
    weights.write(path, halves, config=model.config.to_dict(), vocabulary=("<pad>", "月"), seed=3)
    read, metadata = weights.read(path)
    assert metadata["vocabulary"] == ["<pad>", "月"] and (metadata["seed"], metadata["tfviz"]) == (3, 1)
    assert {w.dtype for w in read.values()} == {torch.float16}
    assert sum(w.numel() for w in read.values()) == sum(p.numel() for p in model.parameters())

    copy = Transformer(TransformerConfig.from_dict(metadata["config"])).eval()
    weights.fill(copy, read)
    ids = torch.tensor([[4, 5, 6]])
    torch.testing.assert_close(copy(ids, ids), model(ids, ids), atol=0.02, rtol=0)
    assert copy.output.weight is copy.encoder.embedding.tokens.table.weight, "tied as before"


def test_weights_of_another_model_do_not_fill_one(model: Transformer) -> None:
    halves = weights.rounded(model)
    with pytest.raises(KeyError, match="another"):
        weights.fill(model, halves | {"another": torch.zeros(1)})
    name, _ = halves.popitem()
    with pytest.raises(KeyError, match=name):
        weights.fill(model, halves)


def test_the_command_trains_scores_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    files = [tmp_path / name / "model.safetensors" for name in "ab"]
    for path in files:
        main(["--steps", "2", "--held-out", "5", "--out", str(path), "--threads", str(before)])
    said = capsys.readouterr().out
    assert "step     2" in said and "exact: 0 of 5" in said
    assert files[0].read_bytes() == files[1].read_bytes()
    _, metadata = weights.read(files[0])
    assert set(metadata) == {"tfviz", "config", "vocabulary", "seed", "recipe", "data", "score"}
    assert metadata["recipe"]["steps"] == 2 and metadata["config"]["vocab_size"] == len(metadata["vocabulary"])
    assert metadata["data"]["languages"] == ["en", "zh", "de", "fr", "es"] and "12/25/2026" in metadata["data"]["rule"]


# ---- the dates model that ships


@pytest.fixture(scope="module")
def shipped() -> tuple[Transformer, DateTask, dict]:
    """Built from the file alone; its shared matrix is put everywhere that the config shares it."""
    halves, metadata = weights.read(SHIPPED)
    model = Transformer(TransformerConfig.from_dict(metadata["config"]))
    names = {id(weight): name for name, weight in model.named_parameters()}
    state = {name: halves[names[id(weight)]].float() for name, weight in model.state_dict(keep_vars=True).items()}
    model.load_state_dict(state, strict=True)
    task = DateTask()
    assert metadata["vocabulary"] == list(task.vocabulary)
    return model.eval(), task, metadata


@pytest.mark.parametrize("option", [["--held-out", "0"], ["--held-out", "5001"], ["--threads", "0"], ["--steps", "0"]])
def test_the_command_refuses_before_it_trains(option: list[str], tmp_path: Path) -> None:
    name = option[0].removeprefix("--").replace("-", "_")
    with pytest.raises(TfvizError, match=f"{name} = {option[1]}"):
        main([*option, "--out", str(tmp_path / "model.safetensors")])


def test_the_shipped_model_says_how_good_it_is(shipped: tuple[Transformer, DateTask, dict]) -> None:
    _, task, metadata = shipped
    score = metadata["score"]
    assert score["n"] == 5000 and score["exact"] >= 0.999
    assert score["by_group"].keys() == task.styles.keys() and min(score["by_group"].values()) >= 0.995
    assert metadata["data"] == task.describe()
    assert SHIPPED.stat().st_size < 2.2e6  # bytes


def test_the_shipped_model_is_that_good_on_days_it_never_saw(shipped: tuple[Transformer, DateTask, dict]) -> None:
    model, task, _ = shipped
    score = exact_match(model, task, task.held_out(600, seed=1))
    assert score.right >= 597, score.wrong
    assert min(right for right, _ in score.by_group.values()) >= 118, score.wrong


def confidence(model: Transformer, task: Task, text: str) -> tuple[str, float]:
    """What is written for a text, and the product of its tokens' probabilities."""
    ids, log_prob = greedy(model, torch.tensor([task.encode(text)]))
    return task.decode(ids[0].tolist()), math.exp(log_prob.item())


@pytest.mark.parametrize(
    "text, iso",
    [
        ("03/04/2026", "2026-04-03"),
        ("12/25/2026", "2026-12-25"),
        ("March 5, 2024", "2024-03-05"),
        ("2024年3月5日", "2024-03-05"),
        ("二〇二四年三月五日", "2024-03-05"),
        ("Dienstag, 5. März 2024", "2024-03-05"),
        ("mardi 5 mars 2024", "2024-03-05"),
        ("martes, 5 de marzo de 2024", "2024-03-05"),
        ("5.3.68", "2068-03-05"),
        ("5.3.69", "1969-03-05"),
    ],
)
def test_the_shipped_model_is_sure_of_a_date(text: str, iso: str, shipped: tuple[Transformer, DateTask, dict]) -> None:
    model, task, _ = shipped
    written, sure = confidence(model, task, text)
    assert written == iso and sure > 0.5


@pytest.mark.parametrize(
    "text",
    [
        "hello world",
        "The animal didn't cross the street because it was too tired",
        "March 2024",
        "31 February 2023",
        "2023-13-45",
        "qwerty",
        "你好",
    ],
)
def test_the_shipped_model_is_unsure_of_what_is_no_date(text: str, shipped: tuple[Transformer, DateTask, dict]) -> None:
    model, task, _ = shipped
    assert confidence(model, task, text)[1] < 0.2
