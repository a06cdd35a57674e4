"""work.gemm, work.attention, work.decode, work.moe: operator times on shapes that were left out.

Every shape is left out once, with all its rows, on all machines. What is said of it is borrowed from the others. The
worst machine's median is the figure. Beside: the fitted law alone, the nearest row, and the rates as sold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kit.side_by_side import Row
from openshelf.twin.ops import Left, OpTable, error, left_out, read_tables

BARS = {"gemm": 5, "attention": 3, "decode": 2, "moe": 10}
FILES = {
    "gemm": "gemm.csv",
    "attention": "attention_context.csv",
    "decode": "attention_generation.csv",
    "moe": "moe.csv",
}
QUICK = 60  # rows of each machine, dtype and fold
MORE = {"decode": 150}  # whose median differs by tenths with the rows that are drawn
MODEL = ("hidden", "inter", "topk", "experts")


def rows(data: Path, quick: bool) -> Iterator[Row]:
    for op, bar in BARS.items():
        path = data / "ops" / FILES[op]
        if not path.exists():
            yield Row(f"work.{op}", "shapes left out", None, "%", "", None, None, bar=f"<= {bar}", note="no data here")
            continue
        (table,) = read_tables(path)
        yield from _scored(
            f"work.{op}", "shapes left out", bar, list(left_out(table, MORE.get(op, QUICK) if quick else None))
        )
        if op == "moe":
            yield from _models(table, quick)


def _models(table: OpTable, quick: bool) -> Iterator[Row]:
    """Whole models left out: no bar, but what to expect of a model that nobody measured."""
    found = list(left_out(table, QUICK if quick else None, MODEL))
    yield from _scored("work.moe_model", "whole models left out", None, found)


def _scored(id: str, what: str, bar: int | None, found: list[Left]) -> Iterator[Row]:
    for each in found:
        assert not each.fitted & set(each.judged), f"{id}: a row is fitted and judged"
    made = []
    for machine in sorted({each.key[0] for each in found}):
        of = [each for each in found if each.key[0] == machine]
        measured, near, law, nearest, ideal = (
            np.concatenate([getattr(each, name) for each in of])
            for name in ("measured", "near", "law", "nearest", "ideal")
        )
        value = 100 * error(near, measured)
        others = f"law {100 * error(law, measured):.1f} %, nearest row {100 * error(nearest, measured):.1f} %, "
        note = f"{len(measured)} rows, not fitted; {others}as sold {100 * error(ideal, measured):.0f} %"
        best = min(100 * error(law, measured), 100 * error(nearest, measured))
        made.append(
            Row(f"{id}.machine", f"{what}: {machine}", value, "%", "best simple", best / value, None, note=note)
        )
    worst = max(made, key=lambda row: row.value or 0)
    limit = f"<= {bar}" if bar is not None else ""
    yield Row(id, f"{what}, worst machine", worst.value, "%", worst.peer, worst.ratio, None, bar=limit, note=worst.case)
    yield from made
