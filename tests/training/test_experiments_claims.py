"""What the claims about training are measured by."""

from math import log

import pytest
import torch

from tfviz.training.experiments import claims
from tfviz.training.loss import over_all


def test_the_rate_peaks_at_the_end_of_the_warm_up() -> None:
    found = claims.rates()
    assert (found["step"], found["peak"]) == (4000, pytest.approx(found["formula"]))
    assert (found["rise"], found["fall"]) == (pytest.approx(1), pytest.approx(-0.5))


def test_the_texts_target_is_torchs_and_the_codes_is_another() -> None:
    found = claims.smoothing()
    assert found["torch_off"] < 1e-9 and found["text_other"] == pytest.approx(0.01)
    assert found["code_other"] == pytest.approx(0.1 / 8) and found["apart"] == pytest.approx(0.01)


def test_the_floor_is_the_entropy_of_the_target() -> None:
    text = over_all(claims.PAPER_VOCABULARY, 0.1)
    q = torch.full((claims.PAPER_VOCABULARY,), text.other, dtype=torch.float64)
    q[3] = text.right
    assert claims.smoothing()["floor"] == pytest.approx(float(-(q * q.log()).sum()))
    assert claims.smoothing()["floor"] < log(claims.PAPER_VOCABULARY)


def test_clipped_steps_are_no_longer_than_the_limit() -> None:
    norms = claims.clipped(0.5)
    assert len(norms) == claims.CLIPPED_STEPS
    assert all(after <= 0.5 * (1 + 1e-5) and after <= before for before, after in norms)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    found = claims.dropped(0.25)
    assert found["share"] == pytest.approx(0.25, abs=0.002) and found["mean"] == pytest.approx(1, abs=0.003)
