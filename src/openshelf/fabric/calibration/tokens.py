"""Calibration of MoE exchanges: the constants of each phase of a kernel, from measured rows.

In one domain a unit is a rank, and all rank counts make one phase. Over nodes a unit is a node: one node and several
are served by different kernels, so what a token costs its rank is taken from several, and one node only says what a
launch costs without a hop. All phases of a machine's kernels over nodes leave by the same cards, so they share one
rate: it is fitted once, on the phase that is bound by it most, and then held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from openshelf.errors import BadInput
from openshelf.fabric.calibration.series import TokenRow
from openshelf.fabric.laws.tokens import Phase, fit_phase

_START = Phase(10e-6, 1e-6, 40e-9, 1 / 480e9)


@dataclass(frozen=True)
class TokenCalibration:
    """The law of one phase of a kernel; `rows_sha256` names the rows, `residual` is their median absolute error."""

    machine: str
    name: str
    phase: Phase
    sent_to: str
    one_sided: bool
    units: tuple[int, ...]
    rows: int
    rows_sha256: str
    residual: float
    not_determined: tuple[str, ...] = ()

    def seconds(self, row: TokenRow) -> float:
        return self.phase.seconds(row.load)


def fit_tokens(rows: Sequence[TokenRow], link_bytes_per_s: float, nodes: bool = False) -> list[TokenCalibration]:
    """A calibration of each phase (by machine, kernel and setting) of rows over ranks of one domain, or over nodes."""
    if not rows:
        raise BadInput("nothing to calibrate on: expected rows of MoE exchanges, none came")
    groups: dict[tuple[str, str], list[TokenRow]] = {}
    for row in rows:
        groups.setdefault((row.machine, row.name), []).append(row)
    start = replace(_START, s_per_byte=1 / (0.9 * link_bytes_per_s))
    if not nodes:
        return [_made(machine, own, _fit(own, start)) for (machine, _), own in groups.items()]
    far = {key: [row for row in own if row.units > 1] for key, own in groups.items()}
    shared = {
        machine: _shared_rate([own for key, own in far.items() if key[0] == machine], start, link_bytes_per_s)
        for machine in dict.fromkeys(machine for machine, _ in groups)
    }
    made = []
    for (machine, name), own in groups.items():
        if far[machine, name]:
            held = replace(start, s_per_byte=shared[machine])
            several = _fit(far[machine, name], held, hold_rate=True)
            one = [row for row in own if row.units == 1]
            made.append(_made(machine, own, _with_hop(several, one, far[machine, name], start)))
    if not made:
        names = ", ".join(dict.fromkeys(machine for machine, _ in groups))
        raise BadInput(f"rows of {names} are of one node; a law of exchanges over nodes needs rows of 2 nodes or more")
    return made


def report_tokens(
    rows: Sequence[TokenRow], link_bytes_per_s: float, nodes: bool = False, hold: Collection[int] = ()
) -> tuple[list[TokenCalibration], list[dict[str, Any]]]:
    """Calibrations of the rows that are not held back, and what went into each as a line to keep.

    A line has the error on each number of units that is held back or left out in turn; it is None where the other
    rows do not say.
    """
    used = [row for row in rows if row.units not in hold]
    found = fit_tokens(used, link_bytes_per_s, nodes)
    errors: dict[tuple[str, str], list[dict[str, Any]]] = {(each.machine, each.name): [] for each in found}
    for units in sorted({row.units for row in rows if row.units > 1}):
        rest = [row for row in used if row.units != units]
        able = units in hold or len({row.units for row in rest if row.units > 1 or not nodes}) > 0
        others = found if units in hold else fit_tokens(rest, link_bytes_per_s, nodes) if able else []
        laws = {(each.machine, each.name): each for each in others}
        for key, kept in errors.items():
            own = [row for row in rows if (row.machine, row.name, row.units) == (*key, units)]
            law = laws.get(key)
            off = median(abs(law.seconds(row) / row.seconds - 1) for row in own) if law and own else None
            if own:
                kept.append({"ranks": units, "held_back": units in hold, "rows": len(own), "median_error": off})
    lines = [
        {
            "calibration": f"{each.machine} {each.name}", "rows": each.rows, "rows_sha256": each.rows_sha256,
            "ranks": list(each.units), "free_constants": ["launch_s", "hop_s", "token_s", "bandwidth"],
            "not_determined": list(each.not_determined), "median_residual": each.residual,
            "left_out": errors[each.machine, each.name],
        }
        for each in found
    ]  # fmt: skip
    return found, lines


def _fit(rows: Sequence[TokenRow], start: Phase, hold_rate: bool = False) -> Phase:
    pairs = [(row.load, row.seconds) for row in rows]
    first = min(seconds for _, seconds in pairs)
    most = max(pairs, key=lambda pair: pair[0].tokens)
    began = replace(start, launch_s=first, hop_s=first / 10, token_s=max(most[1] - first, first) / most[0].tokens)
    return fit_phase(pairs, began, hold_rate)


def _shared_rate(groups: Sequence[Sequence[TokenRow]], start: Phase, link_bytes_per_s: float) -> float:
    """Seconds a byte, of the phase where bytes take the largest part of the time beside processors."""
    found = []
    for own in groups:
        if own and own[0].value_bytes:
            phase = _fit(own, start)
            found.append((phase.s_per_byte * own[0].load.remote_bytes / phase.token_s, phase.s_per_byte))
    return max(max(found)[1], 1 / link_bytes_per_s) if found else start.s_per_byte


def _with_hop(several: Phase, one: Sequence[TokenRow], far: Sequence[TokenRow], start: Phase) -> Phase:
    """With rows of one node, what more it takes to reach a second one is the hop; else a tenth of the launch is."""
    hops = sorted({row.load.units for row in far})
    if len(hops) > 1 or not one:
        return several
    near = _fit(one, start)
    reached_s = several.launch_s + several.hop_s
    hop_s = max(reached_s - near.launch_s, reached_s / 100)
    return replace(several, launch_s=reached_s - hop_s, hop_s=hop_s)


def _made(machine: str, rows: Sequence[TokenRow], phase: Phase) -> TokenCalibration:
    off = [abs(phase.seconds(row.load) / row.seconds - 1) for row in rows]
    lines = sorted(f"{row}" for row in rows)
    units = tuple(sorted({row.units for row in rows}))
    loose = ["hop_s"] if len(units) < 2 else []
    loose += ["bandwidth"] if not rows[0].value_bytes else []
    return TokenCalibration(
        machine, rows[0].name, phase, rows[0].sent_to, rows[0].one_sided, units, len(rows),
        hashlib.sha256("\n".join(lines).encode()).hexdigest(), median(off), tuple(loose),
    )  # fmt: skip
