"""Makes the constants of training that come with the package, and the ledger of the rows that made them.

`python bench/work/fit.py` prints constants.yaml's entries and writes ledger.txt: a line for each fitted row, with the
constants' name and the row's hash. No row of a ledger may judge the constants that it made; tests/bench/test_ledger.py
checks that.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

LEDGER = Path(__file__).with_name("ledger.txt")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def ledger() -> dict[str, set[str]]:
    """The hashes of fitted rows, by the name of the constants."""
    made: dict[str, set[str]] = {}
    for line in LEDGER.read_text().splitlines():
        name, hash = line.split()
        made.setdefault(name, set()).add(hash)
    return made


def main() -> None:
    from kit.data import DATA
    from openshelf.twin.ops import fit_slowness
    from work.steps import mlperf, vtrain
    from work.training import fit_vtrain, fitted_of, mlperf_columns

    steps = vtrain(DATA, "single_node") + vtrain(DATA, "multi_node")
    print("megatron:", {name: round(value, 4) for name, value in fit_vtrain(steps).items()})
    rows = list(mlperf(DATA))
    newest = max(each.round for each in rows)
    shares = np.array([np.array(mlperf_columns(each, newest)) / each.seconds for each in rows])
    names = ("compute", "more on blackwell", f"more there before {newest}", "more in fp4", "gap")
    print("nemo:", dict(zip(names, fit_slowness(shares).round(4).tolist(), strict=True)))
    lines = [f"megatron {each.hash}" for each in fitted_of(steps)] + [f"nemo {each.hash}" for each in rows]
    LEDGER.write_text("\n".join([*sorted(set(lines)), ""]))


if __name__ == "__main__":
    main()
