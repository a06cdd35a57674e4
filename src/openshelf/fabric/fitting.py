"""Calibration: what a link class costs, from send/recv and two-rank rows; everything else is predicted from it.

A ring of p ranks over n bytes takes launch + 2 (p - 1) step + 2 (p - 1) / p x n / (bandwidth x channels). Rows of 1 MiB
and more give launch and bandwidth, by least squares of relative errors with neither below zero; the smallest rows of
both kinds give a step: an all-reduce of two ranks makes one more than a send. Below 1 MiB libraries use quicker
protocols: there the smallest row gives the launch. Between nodes every accelerator of a node is taken to have a channel
(a card) of its own.

Measured series are not always monotone. Before fitting they are made so by pooling neighbours that are out of order
(isotonic regression): noise is averaged, not followed. Rows that are predicted are never fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric import yaml_reader
from openshelf.fabric.fields import Checked
from openshelf.fabric.model import Figure
from openshelf.fabric.nccl import Series
from openshelf.fabric.wiring.protocols import Framing, MessageProtocol, Protocols
from openshelf.fabric.wiring.wires import Wire

LARGE = 1 << 20
"""From here on rows are taken to be of the bandwidth-bound regime."""


@dataclass(frozen=True)
class Calibration:
    """What one link class of a machine costs, `within` a node or `between` nodes; all measured.

    `smallest` and `largest` are the sizes it was calibrated on: beyond them a prediction is an extrapolation.
    """

    machine: str
    where: str
    send_s: float
    send_bytes_per_s: float
    launch_s: float
    small_launch_s: float
    step_s: float
    ring_bytes_per_s: float
    smallest: int
    largest: int
    notes: tuple[str, ...]

    def send(self, nbytes: int) -> float:
        """Seconds of one send and its receive."""
        return self.send_s + nbytes / self.send_bytes_per_s

    def launch(self, nbytes: int) -> float:
        """Seconds before a collective's first step."""
        return self.launch_s if nbytes >= LARGE else self.small_launch_s

    def all_reduce(self, nbytes: int, ranks: int, channels: int = 1) -> float:
        """Seconds of a ring all-reduce."""
        moved = 2 * (ranks - 1) / ranks * nbytes
        return self.launch(nbytes) + 2 * (ranks - 1) * self.step_s + moved / (self.ring_bytes_per_s * channels)

    def beyond(self, nbytes: int) -> bool:
        """Whether a size is outside what was calibrated."""
        return not self.smallest <= nbytes <= self.largest


@dataclass(frozen=True)
class Row:
    """One measured row and what the calibration says of it; `use` is `calibrated` or `predicted`."""

    series: str
    where: str
    ranks: int
    nbytes: int
    measured_s: float
    modelled_s: float
    use: str
    flags: tuple[str, ...]

    @property
    def error(self) -> float:
        """Relative, above 0 where the model is too slow."""
        return self.modelled_s / self.measured_s - 1


def fit(measured: Sequence[Series]) -> list[Calibration]:
    """A calibration for each machine and link class that has a two-rank all-reduce or a send/recv series."""
    made = []
    for machine, where in dict.fromkeys((each.machine, each.where) for each in measured):
        here = [each for each in measured if (each.machine, each.where) == (machine, where) and each.ranks == 2]
        sends = [each for each in here if each.collective == "send_recv"]
        pairs = [each for each in here if each.collective == "all_reduce"]
        if sends or pairs:
            made.append(_calibrate(machine, where, sends, pairs))
    if not made:
        raise BadInput(
            "nothing to calibrate on: expected a send/recv series or an all-reduce of two ranks; "
            f"{', '.join(each.name for each in measured) or 'no series'} came"
        )
    return made


AllReduce = Callable[[Calibration, int, int, int], float]
"""Seconds of an all-reduce of (calibration, bytes, ranks, channels)."""


def compare(
    measured: Sequence[Series],
    calibrations: Sequence[Calibration],
    all_reduce: AllReduce = Calibration.all_reduce,
) -> list[Row]:
    """Every measured row beside its model; those of machines and link classes without a calibration are left out.

    `all_reduce` may be a simulator instead of the formula.
    """
    known = {(each.machine, each.where): each for each in calibrations}
    rows = []
    for series in measured:
        found = known.get((series.machine, series.where))
        if found is None:
            continue
        channels = series.per_node if series.where == "between" else 1
        for nbytes, seconds in series.points:
            send = series.collective == "send_recv"
            modelled = found.send(nbytes) if send else all_reduce(found, nbytes, series.ranks, channels)
            flags = (["beyond the calibrated sizes"] if found.beyond(nbytes) else []) + (
                ["faster than a smaller size: noise?"] if nbytes in series.falls else []
            )
            use = "calibrated" if series.ranks == 2 else "predicted"
            rows.append(Row(series.name, series.where, series.ranks, nbytes, seconds, modelled, use, tuple(flags)))
    return rows


@dataclass(frozen=True)
class Fitted(Checked):
    """Protocols and wires of calibrations: a part of a fabric's file, for others to include."""

    name: str
    protocols: Protocols
    wires: tuple[Wire, ...]

    def yaml(self) -> str:
        return yaml_reader.dump(self)


def fitted(calibrations: Sequence[Calibration]) -> Fitted:
    """What a send costs, as data: a wire and a protocol for each calibration."""
    made, wires = [], []
    for each in calibrations:
        name = f"{each.machine}-{each.where}"
        note = f"{each.machine}, {each.where} nodes: send/recv of {LARGE} to {each.largest} bytes"
        half = Figure(each.send_s / 2 or 1e-12, "measured", f"half of a send's start; {note}")
        extra = f"a collective starts in {each.launch_s:.3g} s and takes {each.step_s:.3g} s more for each step"
        made.append(
            MessageProtocol(
                f"nccl-{name}", Framing(1, 0), half, half, note=extra,
                known_from_bytes=each.smallest, known_to_bytes=each.largest,
            )
        )  # fmt: skip
        rate = Figure(each.send_bytes_per_s, "measured", note)
        wires.append(Wire(name, f"nccl-{name}", rate, latency_s=Figure(1e-12, "measured", "in the protocol's start")))
    return Fitted("fitted", Protocols(message=tuple(made)), tuple(wires))


def report(measured: Sequence[Series]) -> dict[str, Any]:
    """Calibrations and all rows, as plain values for `json`."""
    found = fit(measured)
    rows = compare(measured, found)
    return {
        "calibrations": [vars(each) for each in found],
        "rows": [{**vars(row), "error": row.error} for row in rows],
        "left_out": sorted({each.name for each in measured} - {row.series for row in rows}),
    }


def _calibrate(machine: str, where: str, sends: list[Series], pairs: list[Series]) -> Calibration:
    notes = [
        f"{each.name}: faster than a smaller size at {', '.join(str(nbytes) for nbytes in each.falls)} bytes"
        for each in (*sends, *pairs)
        if each.falls
    ]
    send_points, pair_points = _monotone(sends), _monotone(pairs)
    if not pairs:
        notes.append("no all-reduce of two ranks: launch and ring bandwidth are those of a send")
    if not sends:
        notes.append("no send/recv: a send is taken to cost what an all-reduce of two ranks does, less a step")
    send_s, send_rate = _line(send_points or pair_points)
    start_s, ring_rate = _line(pair_points or send_points)
    first_send, first_pair = (points[0] if points else None for points in (send_points, pair_points))
    step_s = 0.0
    if first_send and first_pair and max(first_send[0], first_pair[0]) < LARGE:
        step_s = max(0.0, first_pair[1] - first_send[1])
    else:
        notes.append("no small rows of both kinds: a step's own time is taken as 0")
    small_s = first_pair[1] if first_pair and first_pair[0] < LARGE else start_s
    sizes = [nbytes for nbytes, _ in (pair_points or send_points)]
    return Calibration(
        machine=machine,
        where=where,
        send_s=send_s,
        send_bytes_per_s=send_rate,
        launch_s=max(0.0, start_s - 2 * step_s),
        small_launch_s=max(0.0, small_s - 2 * step_s),
        step_s=step_s,
        ring_bytes_per_s=ring_rate,
        smallest=min(sizes),
        largest=max(sizes),
        notes=tuple(notes),
    )


def _monotone(series: Sequence[Series]) -> list[tuple[int, float]]:
    """All points in order of size, neighbours out of order pooled to their mean."""
    blocks: list[tuple[float, list[int]]] = []
    for nbytes, seconds in sorted(point for each in series for point in each.points):
        value, sizes = seconds, [nbytes]
        while blocks and blocks[-1][0] > value:
            before, more = blocks.pop()
            value = (before * len(more) + value * len(sizes)) / (len(more) + len(sizes))
            sizes = more + sizes
        blocks.append((value, sizes))
    return [(nbytes, value) for value, sizes in blocks for nbytes in sizes]


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Start and rate of the large rows, by least squares of relative errors."""
    large = [(nbytes, seconds) for nbytes, seconds in points if nbytes >= LARGE]
    if len(large) < 2:
        raise BadInput(
            f"{len(large)} rows of {LARGE} bytes and more; at least two are needed for a bandwidth: measure larger "
            "sizes (nccl-tests: -e 64M)"
        )
    size, seconds = np.array(large, float).T
    matrix = np.stack([1 / seconds, size / seconds], axis=1)
    start, slope = np.linalg.lstsq(matrix, np.ones(len(size)), rcond=None)[0]
    if start < 0:
        start, slope = 0.0, float(np.sum(size / seconds) / np.sum((size / seconds) ** 2))
    if slope <= 0:
        raise BadInput(
            "larger sizes take no longer in these rows: they say nothing of a bandwidth; measure larger ones"
        )
    return float(start), float(1 / slope)
