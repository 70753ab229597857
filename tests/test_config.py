"""Settings: what the environment may say, and what is answered when it makes no sense."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from tfviz.config import MIB, Settings
from tfviz.errors import TfvizError, UnknownChoice
from tfviz.messages import LANGUAGES
from tfviz.registry import choose

COUNTS = {
    "TFVIZ_THREADS": "threads",
    "TFVIZ_MEMORY_BUDGET": "memory_budget",
    "TFVIZ_TRACE_BUDGET": "trace_budget",
    "TFVIZ_MAX_TOKENS": "max_tokens",
    "TFVIZ_MAX_PARAMS": "max_params",
}


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = Settings.from_environment({})
    assert settings.cache == Path.home() / ".cache" / "tfviz"
    assert (settings.device, settings.threads, settings.model) == ("auto", 0, "smollm2-135m")
    assert (settings.memory_budget, settings.trace_budget, settings.max_tokens) == (4096 * MIB, 1024 * MIB, 1024)
    assert (settings.allow_hub, settings.allow_local, settings.max_params) == (None, True, 0)


def test_a_variable_set_to_nothing_is_a_variable_not_set() -> None:
    names = ["TFVIZ_CACHE", "TFVIZ_DEVICE", "TFVIZ_MODEL", "TFVIZ_ALLOW_LOCAL", *COUNTS]
    assert Settings.from_environment(dict.fromkeys(names, "")) == Settings.from_environment({})


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFVIZ_MODEL", "gpt2")
    assert Settings.from_environment().model == "gpt2"


@pytest.mark.parametrize("variable, field", COUNTS.items())
def test_a_count_is_read_and_budgets_are_mebibytes(variable: str, field: str) -> None:
    unit = MIB if "BUDGET" in variable else 1
    assert getattr(Settings.from_environment({variable: " 12 "}), field) == 12 * unit
    assert getattr(Settings.from_environment({variable: "0"}), field) == 0


@pytest.mark.parametrize("value", ["-1", "many", "1.5", "1e3", "0x10"])
@pytest.mark.parametrize("variable", COUNTS)
def test_a_count_that_makes_no_sense_names_the_variable_and_the_value(variable: str, value: str) -> None:
    with pytest.raises(TfvizError, match=f"{variable}.*“{value}”.*whole number") as refused:
        Settings.from_environment({variable: value})
    assert all(variable in refused.value.in_language(language) for language in LANGUAGES)


@pytest.mark.parametrize("value, expected", [("1", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False)])
def test_a_flag_is_read(value: str, expected: bool) -> None:
    assert Settings.from_environment({"TFVIZ_ALLOW_LOCAL": value}).allow_local is expected


def test_a_flag_that_makes_no_sense_names_the_variable() -> None:
    with pytest.raises(TfvizError, match="TFVIZ_ALLOW_LOCAL.*“perhaps”.*0 or 1"):
        Settings.from_environment({"TFVIZ_ALLOW_LOCAL": "perhaps"})


def test_a_space_opens_no_folder_of_its_server_unless_told_to() -> None:
    assert not Settings.from_environment({"SPACE_ID": "a/b"}).allow_local
    assert Settings.from_environment({"SPACE_ID": "a/b", "TFVIZ_ALLOW_LOCAL": "1"}).allow_local


@pytest.mark.parametrize(
    "value, allowed", [("*", None), ("", ()), ("gpt2", ("gpt2",)), (" gpt2 , a/b ,", ("gpt2", "a/b"))]
)
def test_hub_models_are_any_a_list_or_none(value: str, allowed: tuple[str, ...] | None) -> None:
    assert Settings.from_environment({"TFVIZ_ALLOW_HUB": value}).allow_hub == allowed


def test_the_cache_may_be_named_moved_or_in_the_home_folder() -> None:
    assert Settings.from_environment({"TFVIZ_CACHE": "~/x"}).cache == Path.home() / "x"
    assert Settings.from_environment({"XDG_CACHE_HOME": "/c"}).cache == Path("/c/tfviz")
    assert Settings.from_environment({"XDG_CACHE_HOME": "/c", "TFVIZ_CACHE": "/d"}).cache == Path("/d")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings.from_environment({}).model = "gpt2"  # type: ignore[misc]


# ---- tables


def test_a_name_in_the_table_is_found() -> None:
    assert choose({"a": 1, "b": 2}, "b", "letter") == 2


def test_a_name_not_in_the_table_is_answered_with_those_that_are() -> None:
    with pytest.raises(UnknownChoice, match="no letter called “c”.*a, b") as refused:
        choose({"a": 1, "b": 2}, "c", "letter")
    assert isinstance(refused.value, ValueError)
    assert all("c" in refused.value.in_language(language) and "a, b" in refused.value.in_language(language) for language in LANGUAGES)  # fmt: skip # noqa: E501
