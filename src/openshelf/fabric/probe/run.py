"""Measure this machine and describe it as a Fabric.

One step per thing measured; each tells what it did in its figures' notes. What cannot be measured here (a
disk that refuses O_DIRECT, a second core for the load) is left out and named in `Fabric.left_out`: an absent
figure is better than an invented one. Medians everywhere, four digits: the fifth changes from run to run.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from openshelf.errors import BadInput
from openshelf.fabric.fabric import Fabric
from openshelf.fabric.model import Compute, Figure, Gemm, Link, Place
from openshelf.fabric.probe import disk, memory
from openshelf.fabric.probe.effort import FULL, Effort, Progress, measured

__all__ = ["probe"]


@dataclass
class _Found:
    """What the steps have found so far."""

    effort: Effort
    disk_dir: Path
    threads: int
    places: list[Place] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    compute: list[Compute] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def probe(
    *,
    name: str = "local",
    disk_dir: str | os.PathLike[str] = ".",
    effort: Effort = FULL,
    progress: Progress = lambda what, share: None,
) -> Fabric:
    """Measure memory, disk, GEMM and loopback as a Fabric; the machine should be idle meanwhile.

    Uses all cores this process may use and up to two measuring buffers at once. The disk is measured in an
    unnamed temporary file in `disk_dir`, gone when the step ends, however it ends.
    """
    folder = Path(disk_dir)
    if not folder.is_dir():
        raise BadInput(f"disk_dir is {str(folder)!r}, which is not a folder; expected one on the disk to measure")
    found = _Found(effort, folder, len(os.sched_getaffinity(0)))
    # What is shown, its share of the time in a typical run, and the step.
    steps: list[tuple[str, float, Callable[[_Found, Progress], None]]] = [
        ("memory", 0.7, _memory),
        ("disk", 0.1, _disk),
        ("matrix multiplication", 0.05, _gemm),
        ("loopback TCP", 0.15, _loopback),
    ]
    done = 0.0
    for what, part, step in steps:
        progress(what, done)

        def inside(detail: str, share: float, what: str = what, part: float = part, done: float = done) -> None:
            progress(f"{what}: {detail}", done + part * share)

        step(found, inside)
        done += part
    progress("done", 1.0)
    return Fabric(
        name=name,
        places=tuple(found.places),
        links=tuple(found.links),
        compute=tuple(found.compute),
        note=f"{_processor()}, {found.threads} cores usable, Linux {platform.release()}, {effort.name} probe",
        left_out=tuple(found.left_out),
    )


def _memory(found: _Found, progress: Progress) -> None:
    place, left_out = memory.dram(found.effort, found.threads, progress)
    found.places.append(place)
    found.left_out += left_out


def _disk(found: _Found, _: Progress) -> None:
    made = disk.disk(found.effort, found.disk_dir)
    if isinstance(made, str):
        found.left_out.append(made)
        return
    found.places.append(made)
    found.links.append(
        Link(
            "disk",
            "disk",
            "dram",
            "message",
            _with_note(made.read_bandwidth_bytes_per_s, "the disk and its link are measured as one"),
            _with_note(made.write_bandwidth_bytes_per_s, "the disk and its link are measured as one"),
        )
    )


def _gemm(found: _Found, _: Progress) -> None:
    import numpy as np  # a tenth of a second that only probing needs

    n = found.effort.gemm_side
    a = np.random.default_rng(1).random((n, n), dtype=np.float32)
    b, out = a.T.copy(), np.empty((n, n), np.float32)
    times = memory.timed(lambda: np.matmul(a, b, out=out), found.effort.gemm_repetitions)
    note = f"numpy {np.__version__}, {n} x {n} x {n}, its own threads, median of {len(times)}"
    rate = measured([2 * n**3 / seconds for seconds in times], note)
    found.compute.append(Compute("cpu", "dram", (Gemm("float32", rate),)))


def _loopback(found: _Found, _: Progress) -> None:
    from openshelf import _core

    effort = found.effort
    try:
        trips = _core.loopback_round_trips(64, effort.round_trips)
        passes = [_core.loopback_stream(effort.stream_bytes, 1 << 20) for _ in range(3)]
    except RuntimeError as error:
        found.left_out.append(f"loopback TCP: {error}")
        return
    rates = [effort.stream_bytes / seconds for seconds in passes]
    found.links.append(
        Link(
            "loopback",
            "dram",
            "dram",
            "message",
            measured(rates, f"one TCP connection, 1 MiB sends, median of {len(rates)}"),
            latency_s=measured(
                [trip / 2 for trip in trips],
                f"half a round trip of 64 bytes, blocking sockets, median of {len(trips)}",
            ),
        )
    )


def _with_note(figure: Figure, note: str) -> Figure:
    return Figure(figure.value, figure.source, note)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
