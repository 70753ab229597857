"""Weight tying: one matrix in memory, counted once, whose gradient is the sum of its uses."""

import numpy as np
import pytest

from tfviz.config import PRESETS
from tfviz.errors import UnknownChoice
from tfviz.training.experiments.tying import count, share

USES = {"encoder-decoder": ["encoder", "decoder", "output"], "encoder": ["encoder", "output"]}


@pytest.mark.parametrize("preset", PRESETS)
def test_tying_saves_a_matrix_for_each_use_but_one(preset: str) -> None:
    config, counts, shared = PRESETS[preset], count(preset), share(preset)
    saved = sum(counts.separate.values()) - sum(counts.tied.values())
    assert saved == (len(shared.addresses) - 1) * config.vocab_size * config.d_model
    assert "output" in counts.separate and "output" not in counts.tied


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_one_matrix_and_its_gradient_the_sum_of_its_uses(preset: str) -> None:
    shared = share(preset)
    assert list(shared.addresses) == USES.get(PRESETS[preset].family, ["decoder", "output"])
    assert len(set(shared.addresses.values())) == 1
    np.testing.assert_array_equal(shared.embedding, shared.output)
    np.testing.assert_allclose(sum(shared.by_use.values()), shared.gradient, atol=1e-6)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in shared.by_use.values())


def test_the_paper_saves_what_it_says() -> None:
    assert sum(count("paper-base").separate.values()) - sum(count("paper-base").tied.values()) == 2 * 37_000 * 512


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(UnknownChoice, match="paper-base"):
        count("paper-bass")
