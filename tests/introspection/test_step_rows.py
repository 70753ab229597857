"""Rows that the steps of a decode read are those of one pass over the whole text, windows and shared keys included."""

import numpy as np
import pytest

from tests.conftest import Loaded
from tfviz.introspection.capture import capture
from tfviz.introspection.generation import run_steps
from tfviz.introspection.grown import grown_prompt
from tfviz.introspection.run import Plan, Run
from tfviz.introspection.step_rows import step_rows

TEXT = "The animal didn't cross the street because it was too tired"


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "t5", "bart", "gemma2"])
def test_rows_of_a_decode_are_those_of_one_pass_over_the_whole_text(name: str, loaded: Loaded) -> None:
    model = loaded(name)
    kernel = "naive" if name == "gemma2" else "flash"
    prompt = model.prompt(TEXT)
    made = list(run_steps(model, prompt, Plan(6, kernel=kernel)))
    run = Run(Plan(6, kernel=kernel), made)
    whole = capture(model, grown_prompt(model, prompt, run), (TEXT, None), kernel="naive")
    for kind in ("self",) if model.family == "decoder" else ("decoder", "cross"):
        ours = [row for step in step_rows(run.seen, kind, 1, 1) for row in step]
        theirs, blocked = whole.stacks[kind].layers[1].weights(1)[0], whole.stacks[kind].layers[1].blocked
        assert len(ours) == len(theirs)
        for i, row in enumerate(ours):
            np.testing.assert_allclose(np.nan_to_num(row), theirs[i, : len(row)], atol=2e-5)
            np.testing.assert_array_equal(np.isnan(row), blocked[min(1, len(blocked) - 1), i, : len(row)])


def test_rows_are_added_without_those_that_are_there(loaded: Loaded) -> None:
    model = loaded("llama")
    seen = Run(Plan(5), list(run_steps(model, model.prompt(TEXT), Plan(5)))).seen
    whole, later = step_rows(seen, "self", 0, 3), step_rows(seen, "self", 0, 3, first=2)
    assert [row.shape for row in later] == [row.shape for row in whole[2:]]
    for one, other in zip(later, whole[2:], strict=True):
        np.testing.assert_array_equal(one, other)
