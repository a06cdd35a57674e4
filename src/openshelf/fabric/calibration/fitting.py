"""Calibration: the law of a machine's collectives, from measured rows of any rank counts.

Rows of one machine and library, within a node or between nodes, make one calibration (laws/fit.py). What the law says
of rows that it was not fitted on is told by leaving each rank count out in turn, and by rows that are held back.

Measured series are not always monotone; sizes that took less time than a smaller one did are named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric.calibration.series import Series
from openshelf.fabric.laws.fit import Constant, Measured, fit_law
from openshelf.fabric.laws.regimes import Law, Regime, typical
from openshelf.fabric.laws.shapes import work

_LEAST = 2  # rows of a calibration
_SHARE = 0.75  # of a link that a library reaches, where nobody says how fast the link is


@dataclass(frozen=True)
class Wanted:
    """What is known of the machine beforehand: its link's public rate, whether its switch adds up, another start.

    `on_a_bus` says that its accelerators share a bus, such as PCIe, and have no switch that does not block.
    """

    link_bytes_per_s: float | None = None
    reduces: bool = False
    start: tuple[Regime, ...] = ()
    on_a_bus: bool = False

    def __post_init__(self) -> None:
        link = self.link_bytes_per_s
        if link is not None and not 0 < link < float("inf"):
            raise BadInput(f"a link's rate is {link} bytes/s; expected a number above 0, such as 450e9")


@dataclass(frozen=True)
class Calibration:
    """The law of one machine and library, `within` a node or `between` nodes.

    `smallest` and `largest` are the sizes it was fitted on: beyond them a prediction is an extrapolation. `rows_sha256`
    names the rows, `residual` is the median of their absolute relative errors.
    """

    machine: str
    library: str
    where: str
    law: Law
    constants: tuple[Constant, ...]
    ranks: tuple[int, ...]
    rows: int
    rows_sha256: str
    residual: float
    smallest: int
    largest: int
    link_bytes_per_s: float
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.machine, self.library, f"{self.where} nodes") if part)

    def seconds(self, kind: str, ranks: int, nbytes: float, channels: float = 1.0) -> float:
        """Seconds of a collective, by the fastest regime."""
        return self.law.seconds(kind, ranks, nbytes, channels)

    def beyond(self, nbytes: int) -> bool:
        """Whether a size is outside what was calibrated."""
        return not self.smallest <= nbytes <= self.largest


@dataclass(frozen=True)
class Row:
    """One measured row and what the calibration says of it; `use` is `fitted` or `predicted`."""

    series: str
    where: str
    kind: str
    ranks: int
    nbytes: int
    measured_s: float
    modelled_s: float
    regime: str
    use: str
    flags: tuple[str, ...]

    @property
    def error(self) -> float:
        """Relative, above 0 where the model is too slow."""
        return self.modelled_s / self.measured_s - 1


def fit(measured: Sequence[Series], wanted: Wanted | None = None, hold: Collection[int] = ()) -> list[Calibration]:
    """A calibration for each machine, library and `where`; series of rank counts in `hold` are not looked at."""
    made = []
    for machine, library, where in dict.fromkeys((each.machine, each.library, each.where) for each in measured):
        here = [each for each in measured if (each.machine, each.library, each.where) == (machine, library, where)]
        used = [each for each in here if each.ranks not in hold]
        if used:
            made.append(_calibrate(machine, library, where, used, wanted or Wanted()))
    if not made:
        names = ", ".join(each.name for each in measured) or "no series"
        raise BadInput(
            f"nothing to calibrate on: expected series of other rank counts than those held back; {names} came"
        )
    return made


def compare(measured: Sequence[Series], calibrations: Sequence[Calibration]) -> list[Row]:
    """Every measured row beside its model; those without a calibration, or that its law cannot do, are left out."""
    known = {(each.machine, each.library, each.where): each for each in calibrations}
    rows = []
    for series in measured:
        found = known.get((series.machine, series.library, series.where))
        able = found and any(
            work(each.shape, series.collective, series.ranks)
            for each in found.law.regimes
            if each.name not in found.law.unused
        )
        if found is None or not able:
            continue
        use = "fitted" if series.ranks in found.ranks else "predicted"
        for nbytes, seconds in series.points:
            modelled, regime = found.law.fastest(series.collective, series.ranks, nbytes, series.channels)
            flags = (["beyond the calibrated sizes"] if found.beyond(nbytes) else []) + (
                ["faster than a smaller size: noise?"] if nbytes in series.falls else []
            )
            rows.append(
                Row(series.name, series.where, series.collective, series.ranks, nbytes, seconds, modelled, regime.name,
                    use, tuple(flags))
            )  # fmt: skip
    return rows


def left_out(measured: Sequence[Series], wanted: Wanted | None = None) -> list[dict[str, Any]]:
    """The error on rows that were not fitted: each rank count of each calibration in turn, from the other counts.

    `median_error` is None where the other counts say nothing of these rows.
    """
    made = []
    for whole in fit(measured, wanted):
        own = [
            each
            for each in measured
            if (each.machine, each.library, each.where) == (whole.machine, whole.library, whole.where)
        ]
        for ranks in whole.ranks if len(whole.ranks) > 1 else ():
            others = sum(len(each.points) for each in _lawful(own) if each.ranks != ranks)
            found = fit(own, wanted, {ranks}) if others >= _LEAST else []
            off = [abs(row.error) for row in compare(own, found) if row.use == "predicted"]
            error = median(off) if off else None
            made.append({"calibration": whole.name, "ranks": ranks, "rows": len(off), "median_error": error})
    return made


def report(measured: Sequence[Series], wanted: Wanted | None = None, hold: Collection[int] = ()) -> dict[str, Any]:
    """Calibrations, every row, and the error on rank counts left out, as plain values for `json`."""
    found = fit(measured, wanted, hold)
    rows = compare(measured, found)
    return {
        "calibrations": [asdict(each) for each in found],
        "rows": [{**vars(row), "error": row.error} for row in rows],
        "left_out": left_out([each for each in measured if each.ranks not in hold], wanted),
        "not_compared": sorted({each.name for each in measured} - {row.series for row in rows}),
    }


def ledger(found: Sequence[Calibration], left: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What went into each calibration, as lines to keep."""
    return [
        {
            "calibration": each.name,
            "rows": each.rows,
            "rows_sha256": each.rows_sha256,
            "ranks": list(each.ranks),
            "free_constants": [f"{c.regime}: {c.part}" for c in each.constants if c.rows],
            "not_determined": [f"{c.regime}: {c.part}" for c in each.constants if not c.determined],
            "sharing": each.law.sharing,
            "median_residual": each.residual,
            "left_out": [row for row in left if row["calibration"] == each.name],
        }
        for each in found
    ]


def _lawful(measured: Sequence[Series]) -> list[Series]:
    """Series of collectives that some regime can do."""
    return [each for each in measured if work("ring", each.collective, 2) or work("exchange", each.collective, 2)]


def _calibrate(machine: str, library: str, where: str, every: Sequence[Series], wanted: Wanted) -> Calibration:
    used = _lawful(every)
    rows = [
        Measured(each.collective, each.ranks, nbytes, seconds, each.channels)
        for each in used
        for nbytes, seconds in each.points
    ]
    if len(rows) < _LEAST:
        known = "a law needs more: measure other sizes (nccl-tests: -b 1K -e 1G)" if used else "no regime does these"
        raise BadInput(f"{len(rows)} rows of {', '.join(each.name for each in used or every)}; {known}")
    notes = [f"{each.name}: no regime does it, and it is left out" for each in every if each not in used]
    notes += [
        f"{each.name}: faster than a smaller size at {', '.join(str(nbytes) for nbytes in each.falls)} bytes"
        for each in used
        if each.falls
    ]
    link, least = wanted.link_bytes_per_s, 0.0
    if link is None:
        link = max(_reached(row) for row in rows) / _SHARE
        notes.append(f"the link's rate is not given: {link:.3g} bytes/s is taken, from the fastest row")
    else:
        least = 1 / link
    kernels = not library.startswith("nccl") and bool(library)
    start = wanted.start or typical(link, wanted.reduces and where == "within", kernels)
    found = fit_law(rows, start, least, wanted.on_a_bus and where == "within")
    if len({row.ranks for row in rows}) < 2:
        grows = "with their number, as on a bus" if found.law.sharing else "not at all, as behind a switch"
        notes.append(f"one rank count does not say how a byte's time grows with ranks: {grows}")
    elif found.law.sharing:
        notes.append(f"bytes take longer with more ranks (power {found.law.sharing:g} of half their number)")
    for name in found.law.unused:
        notes.append(f"no row says anything of {name}: it is not counted on")
    sizes = [nbytes for each in used for nbytes, _ in each.points]
    return Calibration(
        machine, library, where, found.law, found.constants, tuple(sorted({each.ranks for each in used})), len(rows),
        rows_hash(used), float(np.median(np.abs(found.errors))), min(sizes), max(sizes), link, tuple(notes),
    )  # fmt: skip


def _reached(row: Measured) -> float:
    asked = work("ring", row.kind, row.ranks) or work("exchange", row.kind, row.ranks)
    return asked.moved * row.nbytes / row.channels / row.seconds if asked else 0.0


def rows_hash(used: Sequence[Series]) -> str:
    """A name for a set of rows, whatever their order."""
    lines = sorted(
        f"{each.machine},{each.library},{each.collective},{each.ranks},{each.per_node},{nbytes},{seconds:.9g}"
        for each in used
        for nbytes, seconds in each.points
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
