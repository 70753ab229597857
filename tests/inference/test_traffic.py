"""Bytes through slow memory: counted by hand, by a loop, and within the fast memory that is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfviz.inference import traffic
from tfviz.inference.traffic import HeadShape, alive, blocks_that_fit, keys_read, naive_traffic, tiled_traffic

N = st.integers(1, 40)


def test_naive_reads_and_writes_each_matrix_once() -> None:
    moved = naive_traffic(HeadShape(3, 5, 2, 7, element=4))
    matrix = 3 * 5 * 4
    assert moved == {
        "q": 24, "k": 40, "v": 140, "o": 84, "s_write": matrix, "s_read": matrix, "p_write": matrix, "p_read": matrix
    }  # fmt: skip


def test_tiled_reads_keys_and_values_once_for_each_block_of_queries() -> None:
    shape = HeadShape(12, 12, 64, 64)
    assert keys_read(shape, 4, 5) == 36 and keys_read(shape, 12, 12) == 12 and keys_read(shape, 5, 1) == 36
    assert tiled_traffic(shape, 36) == {"q": 3072, "k": 9216, "v": 9216, "o": 3072}


@given(n=N, more=st.integers(0, 9), rows=N, columns=N)
def test_causal_tiles_in_the_future_are_not_read(n: int, more: int, rows: int, columns: int) -> None:
    shape = HeadShape(n, n + more, 8, 8, causal=True)
    read = 0
    for top in range(0, n, rows):
        newest = min(top + rows, n) - 1 + more
        starts = range(0, n + more, columns)
        read += sum(min(columns, n + more - start) for start in starts if start <= newest)
    assert keys_read(shape, rows, columns) == read


@given(kib=st.integers(8, 4096), dim=st.sampled_from([16, 64, 128]), element=st.sampled_from([2, 4]))
def test_what_is_said_to_fit_fits_and_one_row_more_does_not(kib: int, dim: int, element: int) -> None:
    rows, columns = blocks_that_fit(kib * 1024, dim, dim, element)

    def held(rows: int) -> int:
        return (2 * dim * (rows + columns) + rows * columns) * element  # Q, O, K, V, S

    assert held(rows) <= kib * 1024 < held(rows + 1)


def test_a_memory_that_holds_nothing_still_gives_a_block() -> None:
    assert blocks_that_fit(4, 64, 64) == (1, 1)
    assert blocks_that_fit(128 * 1024, 64, 64) == (128, 64)  # what kernels use


def test_alive_at_once_is_two_matrices_or_one_tile() -> None:
    assert alive(HeadShape(100, 50, 8, 8), 16, 64) == (2 * 100 * 50 * 4, 16 * 50 * 4)


@pytest.mark.parametrize(("text", "size"), [("1024K\n", 2**20), ("2M", 2**21), ("", None), ("x", None), ("12", None)])
def test_the_cache_of_this_machine_is_read_or_not_known(text: str, size: int, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    place = tmp_path / "size"
    place.write_text(text)
    monkeypatch.setattr(traffic, "L2", place)
    assert traffic.fast_memory() == size
    monkeypatch.setattr(traffic, "L2", tmp_path / "none")
    assert traffic.fast_memory() is None
