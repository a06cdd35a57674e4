"""Offload: models run in less memory than they need, against the bound and other tools.

All on two threads, in float32. Every contender is a process of its own; they run in turn, and the best of some rounds
counts. Ours reads past the page cache; what others read is taken out of it before each run. `offload.bound` is how
many times longer a run takes than the longer of its two parts: computing with all weights in memory, and reading the
packed bytes with four threads and O_DIRECT. `make bench-offload-peers` installs accelerate and DeepSpeed; a peer that
is absent is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from kit import page_cache
from kit.servers import Absent, needs
from kit.side_by_side import Report, Row, arguments, p99
from offload_stream import plain
from openshelf._core import DeviceArena
from openshelf.offload import Packed
from openshelf.space import format_size
from processes.offload_contender import Contender
from processes.offload_shapes import SHAPES, write_checkpoint

ARENA, SMALL_ARENA = 256 << 20, 72 << 20
PEERS = {
    "accelerate_disk": "accelerate disk_offload",
    "accelerate_safetensors": "accelerate, safetensors",
    "mapped": "safetensors mmap",
    "deepspeed": "DeepSpeed ZeRO-3, NVMe",
}
LIBRARIES = {"mapped": "safetensors", "deepspeed": "deepspeed"}  # all others are accelerate's
BARS = {"offload.x_deepspeed16": ">= 1.0", "offload.x_deepspeed256": ">= 1.15"}


@contextlib.contextmanager
def contenders(
    kinds: list[str], shape: str, folder: Path, length: int, budget: int = ARENA, count: int = 1
) -> Iterator[dict[str, Contender]]:
    made: dict[str, Contender] = {}
    try:
        for kind in kinds:  # one after the other: they calibrate and measure as they start
            made[kind] = Contender(kind, shape, folder, count, length, SMALL_ARENA if kind == "ours_small" else budget)
        yield made
    finally:
        for one in made.values():
            one.close()


def absent(kinds: list[str]) -> dict[str, str]:
    found = {}
    for kind in kinds:
        try:
            library = LIBRARIES.get(kind, "accelerate")
            needs(library, library)
        except Absent as reason:
            found[kind] = str(reason)
    return found


# Running


def running(report: Report, folder: Path, shape: str, rounds: int, peers: list[str]) -> None:
    missing = absent(peers)
    present = [kind for kind in peers if kind not in missing]
    results: dict[int, dict[str, list[float]]] = {}
    peaks: dict[str, int] = {}
    for length in (16, 256):
        small = ["ours_small"] if length == 16 else []  # for its memory
        with contenders(["ours", *small, "memory", *present], shape, folder, length) as there:
            (file,) = folder.glob("*.packed")
            packed = Packed.open(file)
            buffer = DeviceArena(ARENA)
            nbytes = packed.nbytes - packed.begins
            read = plain(str(file), packed.begins, nbytes, memoryview(buffer.range(0, ARENA, None)))
            seconds = in_turn({"io": read} | {kind: one.run for kind, one in there.items()}, rounds)
            facts = there["ours"].facts()
            peaks |= {kind: max(peaks.get(kind, 0), one.peak()) for kind, one in there.items() if one.alive}
        results[length] = seconds
        against_bound(report, shape, length, seconds, facts, nbytes)
        for kind in present:
            id = f"offload.x_{kind}{length}"
            report.add(faster(id, shape, str(length), {length: seconds}, [kind], BARS.get(id, "")))
    for kind, reason in missing.items():
        report.add(Row(f"offload.x_{kind}", "", None, "x", PEERS[kind], None, None, note=f"skipped: {reason}"))
    if ways := [kind for kind in present if kind.startswith("accelerate")]:
        report.add(faster("offload.x_accelerate", shape, "16 or 256", results, ways, ">= 2"))
    least_memory(report, peaks, results)


def in_turn(calls: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each; another one begins each round."""
    for call in calls.values():
        call()  # checksums are compared once
    seconds: dict[str, list[float]] = {kind: [] for kind in calls}
    order = list(calls)
    for number in range(rounds):
        for at in range(len(order)):
            kind = order[(at + number) % len(order)]
            seconds[kind].append(calls[kind]())
    return seconds


def spread(times: list[float]) -> float:
    """Of two halves of the rounds, interleaved: how much the best of one differs from the best of the other."""
    return min(times[1::2] or times) / min(times[::2])


def against_bound(
    report: Report, shape: str, length: int, seconds: dict[str, list[float]], facts: dict[str, Any], nbytes: int
) -> None:
    best = {kind: min(times) for kind, times in seconds.items()}
    bound = max(best["memory"], best["io"])
    report.add(
        Row(
            f"offload.bound{length}", f"{SHAPES[shape]}, {format_size(ARENA)}, {length} tokens, cold",
            best["ours"] / bound, "x", "the longer of computing in memory and direct reads", bound / best["ours"],
            spread(seconds["ours"]), statistics.median(seconds["ours"]), p99(seconds["ours"]), "<= 1.15",
            f"{best['ours']:.3f} s; computing {best['memory']:.3f}, reading {best['io']:.3f} "
            f"({nbytes / best['io'] / 1e9:.2f} GB/s); predicted {facts['predicted']:.3f}",
        )
    )  # fmt: skip


def faster(
    id: str, shape: str, tokens: str, results: dict[int, dict[str, list[float]]], kinds: list[str], bar: str = ""
) -> Row:
    """How many times as fast as the fastest of some others; of several lengths, where that is the least."""
    best = {length: (min(min(seconds[kind]) for kind in kinds), seconds["ours"]) for length, seconds in results.items()}
    theirs, ours = min(best.values(), key=lambda one: one[0] / min(one[1]))
    ratio = theirs / min(ours) if theirs < math.inf else None
    return Row(
        id, f"{SHAPES[shape]}, {tokens} tokens, cold", ratio, "x", " or ".join(PEERS[kind] for kind in kinds), ratio,
        spread(ours), statistics.median(ours), p99(ours), bar, f"{min(ours):.3f} and {theirs:.3f} s",
    )  # fmt: skip


def least_memory(report: Report, peaks: dict[str, int], results: dict[int, dict[str, list[float]]]) -> None:
    """With the small arena: how fast that is is in the note."""
    others = {kind: peak for kind, peak in peaks.items() if not kind.startswith("ours")}
    least = min(others, key=lambda kind: others[kind])
    slower = min(results[16]["ours_small"]) / min(results[16]["ours"])
    report.add(
        Row(
            "offload.memory", f"most resident bytes while running, arena of {format_size(SMALL_ARENA)}",
            peaks["ours_small"] / 2**20, "MiB", PEERS.get(least, "all in memory"), others[least] / peaks["ours_small"],
            None, bar="the least",
            note=", ".join(f"{PEERS.get(kind, kind)} {format_size(peak)}" for kind, peak in peaks.items())
            + f"; takes {slower:.2f} of the time with {format_size(ARENA)}",
        )
    )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "", with_peers=True)
    report = Report("Offload: models larger than their memory")
    peers = [] if args.no_peers else [kind for kind in PEERS if not args.quick or kind == "accelerate_safetensors"]
    with (
        tempfile.TemporaryDirectory(dir=page_cache.disk(), prefix="openshelf-bench-") as at,
        Console(stderr=True).status("") as status,
    ):
        folder = Path(at)
        os.environ["OPENSHELF_CACHE"] = os.environ["XDG_CACHE_HOME"] = at
        status.update("running...")
        shape = "quick" if args.quick else "full"
        write_checkpoint(SHAPES[shape], folder / "checkpoint")
        running(report, folder, shape, 3 if args.quick else 8, peers)
    report.finish(args.json)


if __name__ == "__main__":
    main()
