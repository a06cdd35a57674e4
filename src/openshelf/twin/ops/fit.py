"""Laws from tables: constants of all rows, and the error on shapes that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from openshelf.errors import BadInput
from openshelf.twin.ops.accelerators import Accelerator
from openshelf.twin.ops.laws import Law, fit_law, name_of
from openshelf.twin.ops.measured import device_of
from openshelf.twin.ops.score import FOLDS, error, fold_of
from openshelf.twin.ops.table import OpTable, by_kind

Laws = dict[str, dict[str, dict[str, Law]]]


def fit_laws(tables: Sequence[OpTable], source: str = "") -> Laws:
    """A law for each kind, accelerator and words."""
    made: Laws = {}
    for table in by_kind(tables):
        keys, folds = table.keys(), fold_of(table)
        for key in sorted(set(keys)):
            rows = np.array([row for row, each in enumerate(keys) if each == key])
            words = dict(zip(table.kind.words, key[1:], strict=True))
            software = ", ".join(sorted({table.software[row] for row in rows} - {""}))
            law = _fit(table, rows, folds[rows], words, f"{source}, {software}" if software else source)
            made.setdefault(table.kind.name, {}).setdefault(key[0], {})[name_of(words)] = law
    return made


def laws_for(tables: Sequence[OpTable], device: Accelerator) -> dict[str, dict[str, Law]]:
    """Laws of one accelerator against its own rates, by kind and words; raises BadInput if no row is of it."""
    made: dict[str, dict[str, Law]] = {}
    for table in by_kind(tables):
        names = {name for name in set(table.system) if device.name in (name, device_of(name).name)}
        found: dict[tuple[str, ...], list[int]] = {}
        for row, key in enumerate(table.keys()):
            if key[0] in names:
                found.setdefault(key[1:], []).append(row)
        for values, rows in found.items():
            words = dict(zip(table.kind.words, values, strict=True))
            sizes = {name: table.sizes[name][rows] for name in table.kind.sizes}
            law = fit_law(table.kind, sizes, table.seconds[rows], device, words)
            made.setdefault(table.kind.name, {})[name_of(words)] = law
    if not made:
        others = sorted({name for table in tables for name in table.system})
        raise BadInput(f"the tables of operators have no rows of {device.name}; they have {', '.join(others)}")
    return made


def _fit(table: OpTable, rows: np.ndarray, folds: np.ndarray, words: dict[str, str], source: str) -> Law:
    device = device_of(table.system[rows[0]])

    def law(some: np.ndarray) -> Law:
        sizes = {name: column[some] for name, column in table.sizes.items()}
        return fit_law(table.kind, sizes, table.seconds[some], device, words, source)

    said, measured = [], []
    for fold in range(FOLDS):
        judged, kept = rows[folds == fold], rows[folds != fold]
        if len(judged) and len(kept) > len(table.kind.scales):
            sizes = {name: column[judged] for name, column in table.sizes.items()}
            said.append(law(kept).seconds(table.kind, sizes, device, words))
            measured.append(table.seconds[judged])
    whole = law(rows)
    off = error(np.concatenate(said), np.concatenate(measured)) if said else whole.error
    return Law({name: float(f"{value:.4g}") for name, value in whole.slower.items()}, round(off, 3), len(rows), source)


def write_laws(laws: Laws, path: Path) -> None:
    """As YAML, for `Operators(laws=)` and for the package."""
    lines = [
        "# Made by `openshelf twin ops fit`: slowness of each part against the rates as sold; launch in microseconds."
    ]
    for kind, devices in laws.items():
        lines.append(f"{kind}:")
        for device, of in devices.items():
            lines.append(f"  {device}:")
            for name, law in of.items():
                text = yaml.safe_dump(
                    {"slower": dict(law.slower), "error": law.error, "rows": law.rows, "source": law.source},
                    default_flow_style=True, width=10_000, sort_keys=False,
                ).strip()  # fmt: skip
                lines.append(f"    {name}: {text}")
    path.write_text("\n".join([*lines, ""]))
