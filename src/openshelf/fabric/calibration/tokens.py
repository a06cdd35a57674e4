"""Calibration of MoE exchanges: the constants of each phase of a kernel, from measured rows.

In one domain a unit is a rank, and all rank counts make one phase. Over nodes a unit is a node: one node and several
are served by different kernels, so what a token costs its rank is taken from several, and one node only says what a
launch costs without a hop. All phases of a machine's kernels over nodes leave by the same cards, so they share one
rate: it is fitted once, on the phase that is bound by it most, and then held.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

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
    return made


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
