from typing import get_args

from tfviz.sources.catalog import CATALOG, Family
from tfviz.sources.locate import HUB_ID


def test_every_entry_stands_under_its_own_id() -> None:
    assert [entry.id for entry in CATALOG.values()] == list(CATALOG)


def test_every_family_of_transformer_is_offered() -> None:
    assert {entry.family for entry in CATALOG.values()} == set(get_args(Family))


def test_a_decoder_and_an_encoder_need_no_hub() -> None:
    assert {entry.family for entry in CATALOG.values() if entry.wheel} == {"decoder", "encoder"}


FROM_A_HUB = [entry for entry in CATALOG.values() if not entry.ours]


def test_every_entry_is_ours_or_can_be_asked_of_a_hub() -> None:
    assert all(entry.repo and HUB_ID.fullmatch(entry.repo) for entry in FROM_A_HUB)
    assert not any(entry.repo or entry.wheel for entry in CATALOG.values() if entry.ours)


def test_no_two_entries_are_the_same_model() -> None:
    assert len({entry.repo for entry in FROM_A_HUB}) == len(FROM_A_HUB)


def test_the_wheels_are_pinned_to_the_byte() -> None:
    for wheel in (entry.wheel for entry in CATALOG.values() if entry.wheel):
        assert len(wheel.sha256) == 64 and wheel.size > 1e6 and wheel.version in wheel.file and wheel.members


def test_sizes_are_plausible() -> None:
    for entry in FROM_A_HUB:
        assert 1e7 < entry.parameters < 1e9 and 6 <= entry.n_layers <= 32 and 6 <= entry.n_heads <= 16, entry.id
        assert entry.label and entry.license
