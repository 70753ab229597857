"""The matrix that is quantised: found in every architecture, with the rows that it really reads."""

import pytest
import torch
import torch.nn.functional as F

from tests.checkpoints import ARCHITECTURES
from tests.conftest import Loaded
from tfviz.errors import UnsupportedHere
from tfviz.inference.quantisation import Scheme
from tfviz.introspection import quantisation
from tfviz.introspection import quantisation_inputs as reading
from tfviz.introspection.quantisation import METHODS, Matrix, outliers, read, schemes, solve
from tfviz.introspection.quantisation_inputs import PARTS, Readings, linears

TEXTS = ["the cat saw the other cat near the door", "The animal slept"]
KINDS = {"decoder": ["self"], "encoder": ["self"], "encoder-decoder": ["encoder", "decoder", "cross"]}


def tiny(rows: int = 60, seed: int = 0) -> Matrix:
    made = torch.Generator().manual_seed(seed)
    mixed = torch.randn(3 * rows, 8, generator=made) @ torch.randn(8, 64, generator=made)
    mixed = mixed + 0.1 * torch.randn(3 * rows, 64, generator=made)
    mixed[:, 5] *= 30
    weight = 0.1 * torch.randn(16, 64, generator=made)
    return Matrix("layers.0.w", ("down",), weight, 16, *mixed.split(rows))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_its_matrices_and_what_they_read(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    both = "the cat" if model.family == "encoder-decoder" else None
    prompt = model.prompt("the cat saw the door", both)
    for kind in KINDS[model.family]:
        found = linears(model, kind)[0]
        assert {"q", "k", "v", "o", "up", "down"} <= set(found) <= set(PARTS)
        for part, one in found.items():
            module, x = one.module, reading.inputs(model, [one.reader], [prompt])[one.reader]
            weight = reading.weight_of(module)
            assert one.n_in == weight.shape[1]
            source = kind in ("self", "encoder") or (kind == "cross" and part in "kv")
            length = prompt.n_tokens if source else len(prompt.target)
            assert x.shape[1] == weight.shape[1] and len(x) % length == 0  # a shared layer runs several times
            bias = getattr(module, "bias", None)
            given = module(x.unsqueeze(0))[0].detach()
            assert torch.allclose(F.linear(x, weight, None if bias is None else bias.detach()), given, atol=1e-4)


def test_gates_are_told_from_what_they_multiply_and_fused_parts_share_a_matrix(loaded: Loaded) -> None:
    names = {module: name for name, module in loaded("llama").model.named_modules()}
    found = {part: names[one.module].rpartition(".")[2] for part, one in linears(loaded("llama"), "self")[0].items()}
    assert [found[part] for part in PARTS] == [f"{one}_proj" for one in ("q", "k", "v", "o", "up", "gate", "down")]
    fused = linears(loaded("gpt2"), "self")[0]
    assert fused["q"] == fused["k"] == fused["v"] and "gate" not in fused


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_matrix_is_read_with_real_activations(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    matrix = read(model, model.prompt("the cat saw"), "self", 0, "gate")
    assert matrix.parts == (("gate",) if name == "llama" else ("up",))
    assert 0 < len(matrix.calibration) <= reading.MOST_ROWS and not torch.equal(matrix.calibration, matrix.held_out)
    assert len(matrix.sentence) == model.prompt("the cat saw").n_tokens and not matrix.rounded
    assert matrix.nbytes > 4 * matrix.weight.numel()


def test_a_layer_that_is_not_there_is_refused(loaded: Loaded) -> None:
    with pytest.raises(UnsupportedHere):
        read(loaded("llama"), loaded("llama").prompt("the cat"), "self", 99, "q")


def test_one_pass_reads_for_every_layer_and_for_parts_that_read_the_same(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, passes, forward = loaded("llama"), list[int](), type(loaded("llama")).forward
    monkeypatch.setattr(type(model), "forward", lambda *a, **k: (passes.append(1), forward(*a, **k))[1])
    readings, texts = Readings(), (TEXTS, TEXTS[:1])
    first = readings.rows(model, "self", 0, "q", texts)
    n = len(passes)
    assert readings.rows(model, "self", 0, "k", texts) is first and readings.rows(model, "self", 0, "q", texts) is first
    other = readings.rows(model, "self", 1, "v", texts)
    assert len(passes) == n and not torch.equal(other[0], first[0])
    reader = linears(model, "self")[1]["v"].reader
    assert torch.equal(reading.inputs(model, [reader], reading.prompts(model, TEXTS))[reader], other[0])
    readings.rows(model, "self", 0, "down", texts)
    assert len(passes) > n + 1


def test_what_is_kept_stays_within_its_bytes_the_nearest_layers_first(loaded: Loaded) -> None:
    model, texts = loaded("llama"), (TEXTS, TEXTS[:1])
    one = sum(4 * rows.numel() for rows in Readings().rows(model, "self", 0, "q", texts))
    readings = Readings(most=one)
    for layer, part in ((1, "q"), (0, "q"), (0, "up")):
        readings.rows(model, "self", layer, part, texts)
        assert 0 < readings.nbytes <= one


def test_all_widths_are_solved_and_more_bits_do_better() -> None:
    for method in METHODS:
        found = solve(tiny(), method, Scheme(4, "group", 32)).outcomes
        assert [one.bits for one in found] == [8, 7, 6, 5, 4, 3, 2] and found[0].held_out < found[4].held_out
        assert (found[0].alpha is None) == (method != "awq")
    rtn, gptq = (solve(tiny(), method, Scheme(4, "group", 32)) for method in ("rtn", "gptq"))
    assert gptq.outcomes[4].held_out < rtn.outcomes[4].held_out and gptq.outcomes[0].damping == tiny().damping
    assert [one.scheme.bits for one in rtn.looks] == [8, 7, 6, 5, 4, 3, 2] and rtn.nbytes < 2**20
    assert not solve(tiny(), "rtn", Scheme(4), looks=False).looks


def test_the_outlier_channel_is_found_and_sparing_it_helps() -> None:
    assert outliers(tiny()).tolist() == [5]
    found = solve(tiny(), "rtn", Scheme(4, "channel")).outcomes[4]
    assert found.spared is not None and found.spared < 0.6 * found.held_out


def test_too_wide_a_matrix_has_no_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "MOST_INPUTS", 32)
    with pytest.raises(UnsupportedHere, match="64 × 64"):
        solve(tiny(), "gptq", Scheme(4))


def test_schemes() -> None:
    assert len(schemes(64)) == 2 * (2 + 2) and len(schemes(1536)) == 12
