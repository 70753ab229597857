"""Speed, how flash does it: bytes through slow memory, by formula, of the matrix written out and of tiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tfviz.figures.speed_tiling import traffic_lines, traffic_parts
from tfviz.ui.components.picture import Panel, table
from tfviz.ui.i18n import Translator, megabytes, ratio

if TYPE_CHECKING:  # torch comes with them
    from tfviz.inference.traffic import HeadShape
    from tfviz.introspection.tiles import Tiling

MEMORIES = (32, 128, 228, 512, 2048)  # KiB of fast memory to choose from; 228: one multiprocessor of an H100
SENTENCE = 0  # the length that means the sentence's own
LENGTHS = (1024, 2048, 4096, 8192, 16384)
DRAWN = 40  # points of a line
PARTS = ("q", "k", "v", "o", "s_write", "s_read", "p_write", "p_read")
KIB = 1024


@dataclass(frozen=True)
class Wish:
    """What the controls say, and whether the chosen attention is causal."""

    query_block: int
    key_block: int
    memory: int  # KiB
    length: int
    causal: bool


def traffic(tiling: "Tiling", n_query: int, n_key: int, wish: Wish, t: Translator) -> list[Panel]:
    """Three figures and a table: what is moved, how it grows, how it falls with the block, what is alive at once."""
    from tfviz.inference.traffic import HeadShape

    own = HeadShape(n_query, n_key, tiling.dim, tiling.value.shape[1], causal=wish.causal)
    return list(_panels(own, wish, t.language))


@lru_cache(maxsize=32)
def _panels(own: "HeadShape", wish: Wish, language: str) -> tuple[Panel, ...]:
    """Another head of the same size moves the same bytes, so nothing is drawn again for it."""
    from tfviz.inference.traffic import blocks_that_fit

    t = Translator(language)
    fit = blocks_that_fit(wish.memory * KIB, own.dim, own.value_dim, own.element)
    shape = own if wish.length == SENTENCE else _of_length(own, wish.length)
    fields = {"n": f"{shape.n_key:,}", "rows": f"{fit[0]:,}", "columns": f"{fit[1]:,}"}
    fields |= {"memory": megabytes(wish.memory * KIB), "d": str(own.dim)}
    return (
        Panel(_bars(shape, fit, t), t("speed.tiling.parts", **fields), _parts_note(shape, fit, fields, t), wide=True),
        Panel(_growth(own, fit, t), t("speed.tiling.growth"), t("speed.tiling.growth.note", **fields)),
        Panel(_by_block(shape, wish, fit, t), t("speed.tiling.by_block", **fields), _block_note(shape, fields, t)),
        _table(own, wish, fit, t),
    )


def _of_length(own: "HeadShape", n: int) -> "HeadShape":
    from dataclasses import replace

    return replace(own, n_query=n, n_key=n)


def moved(shape: "HeadShape", query_block: int, key_block: int) -> dict[str, dict[str, int]]:
    """Bytes of the two forms, by what is moved."""
    from tfviz.inference.traffic import keys_read, naive_traffic, tiled_traffic

    query_block, key_block = min(query_block, shape.n_query), min(key_block, shape.n_key)
    tiled = tiled_traffic(shape, keys_read(shape, query_block, key_block))
    return {"naive": naive_traffic(shape), "tiled": tiled}


def totals(shape: "HeadShape", query_block: int, key_block: int) -> tuple[int, int, int]:
    """Bytes of naive, of tiled, and of reading q, k, v and writing the output once, which no form can avoid."""
    from tfviz.inference.traffic import tiled_traffic

    both = moved(shape, query_block, key_block)
    least = tiled_traffic(shape, shape.n_key)
    return sum(both["naive"].values()), sum(both["tiled"].values()), sum(least.values())


def first_better(shape: "HeadShape") -> int | None:
    """The smallest block of queries with which tiled moves less than naive; None: no block of this text does."""
    naive = totals(shape, 1, 1)[0]
    low, high = 1, shape.n_query
    if totals(shape, high, 1)[1] >= naive:
        return None
    while low < high:  # larger blocks never move more
        middle = (low + high) // 2
        low, high = (low, middle) if totals(shape, middle, 1)[1] < naive else (middle + 1, high)
    return low


# ---- figures


def _bars(shape: "HeadShape", fit: tuple[int, int], t: Translator) -> Any:
    parts = {t(f"speed.tiling.{way}"): each for way, each in moved(shape, *fit).items()}
    return traffic_parts(parts, {part: t(f"speed.tiling.part.{part}") for part in PARTS})


def _growth(own: "HeadShape", fit: tuple[int, int], t: Translator) -> Any:
    n = np.unique(np.geomspace(64, LENGTHS[-1], DRAWN).round().astype(int))
    every = np.array([totals(_of_length(own, int(one)), *fit) for one in n], dtype=np.float64)
    marks = {t("speed.tiling.mark.sentence", n=own.n_key): own.n_key} if own.n_key >= n[0] else {}
    return traffic_lines(n, _lines(every, t), marks, words=(t("speed.tiling.axis.n"), "MiB"))


def _by_block(shape: "HeadShape", wish: Wish, fit: tuple[int, int], t: Translator) -> Any:
    rows = np.unique(np.geomspace(1, min(shape.n_query, 1024), DRAWN).round().astype(int))
    every = np.array([totals(shape, int(one), fit[1]) for one in rows], dtype=np.float64)
    marks = {t("speed.tiling.mark.yours", n=wish.query_block): wish.query_block}
    if fit[0] <= rows[-1]:
        marks[t("speed.tiling.mark.fits", n=fit[0])] = fit[0]
    return traffic_lines(rows, _lines(every, t), marks, words=(t("speed.tiling.axis.rows"), "MiB"))


def _lines(every: np.ndarray, t: Translator) -> Mapping[str, np.ndarray]:
    return {t(f"speed.tiling.{name}"): every[:, i] for i, name in enumerate(("naive", "tiled", "least"))}


# ---- sentences


def _parts_note(shape: "HeadShape", fit: tuple[int, int], fields: Mapping[str, str], t: Translator) -> str:
    naive, tiled, _ = totals(shape, *fit)
    key = "less" if tiled < naive else "more"
    said = t(f"speed.tiling.parts.{key}", ratio=ratio(max(naive / tiled, tiled / naive)), **fields)
    return f"{said} {t('speed.tiling.parts.how')}"


def _block_note(shape: "HeadShape", fields: Mapping[str, str], t: Translator) -> str:
    from_block = first_better(shape)
    if from_block is None:
        return t("speed.tiling.by_block.never", **fields)
    return t("speed.tiling.by_block.note", block=f"{from_block:,}", **fields)


def _table(own: "HeadShape", wish: Wish, fit: tuple[int, int], t: Translator) -> Panel:
    from tfviz.inference.traffic import alive

    rows = []
    for name, n in [
        (t("speed.tiling.row.sentence", n=f"{own.n_key:,}"), 0),
        *((f"n\u00a0=\u00a0{n:,}", n) for n in LENGTHS),
    ]:
        shape = _of_length(own, n) if n else own
        naive, tiled, least = totals(shape, *fit)
        exist = alive(shape, *fit)
        cells = [megabytes(naive), megabytes(tiled), ratio(naive / tiled), megabytes(least), *map(megabytes, exist)]
        rows.append((name, cells))
    heads = [t(f"speed.tiling.head.{name}") for name in ("naive", "tiled", "ratio", "least", "alive", "alive_tiled")]
    title, note = t("speed.tiling.table"), t("speed.tiling.table.note", memory=megabytes(wish.memory * KIB))
    return Panel(html=table(title, heads, rows), title=title, note=note, wide=True)
