"""Makes the constants of training and serving that come with the package, and the ledger of the rows that made them.

`python bench/work/fit.py` prints the entries of train/constants.yaml and serve/law.yaml and writes ledger.txt: a line
for each fitted row, with the constants' name and the row's hash. No row of a ledger may judge the constants that it
made; tests/bench/test_ledger.py checks that.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import numpy as np

from openshelf.twin.serve import Setting, read_settings

LEDGER = Path(__file__).with_name("ledger.txt")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def ledger() -> dict[str, set[str]]:
    """The hashes of fitted rows, by the name of the constants."""
    made: dict[str, set[str]] = {}
    for line in LEDGER.read_text().splitlines():
        name, hash = line.split()
        made.setdefault(name, set()).add(hash)
    return made


def served(data: Path) -> list[Setting]:
    found, _ = read_settings(data / "serving" / "e2e_silicon.csv")
    return found


def hash_of(setting: Setting) -> str:
    """Of a measured setting: what it is, and what was measured."""
    text = f"{setting.case} {setting.origin} {setting.ttft_s:.9g} {setting.tpot_s:.9g} {setting.repeats}"
    return sha256(text.encode()).hexdigest()[:16]


def main() -> None:
    from kit.data import DATA
    from openshelf.twin.ops import fit_slowness
    from openshelf.twin.serve import fit_law, rows_of
    from work.steps import mlperf, vtrain
    from work.training import fit_vtrain, fitted_of, mlperf_columns

    steps = vtrain(DATA, "single_node") + vtrain(DATA, "multi_node")
    print("megatron:", {name: round(value, 4) for name, value in fit_vtrain(steps).items()})
    rows = list(mlperf(DATA))
    newest = max(each.round for each in rows)
    shares = np.array([np.array(mlperf_columns(each, newest)) / each.seconds for each in rows])
    names = ("compute", "more on blackwell", f"more there before {newest}", "more in fp4", "gap")
    print("nemo:", dict(zip(names, fit_slowness(shares).round(4).tolist(), strict=True)))
    settings = served(DATA)
    columns = rows_of(settings)
    law = fit_law(columns, np.full(len(settings), True))
    used = columns.fits & ~columns.split
    print(f"law.yaml, on {used.sum()} settings:")
    for name, value in asdict(law).items():
        if name != "errors":
            print(f"{name}: {[float(f'{each:.4g}') for each in value] if isinstance(value, tuple) else f'{value:.4g}'}")
    lines = [f"megatron {each.hash}" for each in fitted_of(steps)] + [f"nemo {each.hash}" for each in rows]
    lines += [f"serving {hash_of(each)}" for each, fitted in zip(settings, used, strict=True) if fitted]
    LEDGER.write_text("\n".join([*sorted(set(lines)), ""]))


if __name__ == "__main__":
    main()
