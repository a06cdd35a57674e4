"""Offload: models run and trained in less memory than they need, against the bound, plain torch and other tools.

All on two threads, in float32. Every contender is a process of its own; they run in turn, and the best of some rounds
counts. Ours reads past the page cache; what others read is taken out of it before each run. `offload.bound` is how
many times longer a run takes than the longer of its two parts: computing with all weights in memory, and reading the
packed bytes with four threads and O_DIRECT. `offload.train` is a step within a share of the memory that plain torch
takes for it. `make bench-offload-peers` installs accelerate; a peer that is absent is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

import page_cache
from offload_predict import predicting
from offload_process import Contender
from offload_shapes import SHAPES, write_checkpoint
from offload_stream import plain
from openshelf._core import DeviceArena
from openshelf.offload._packed import Packed
from openshelf.space import format_size
from peers import Absent, needs
from side_by_side import Report, Row, arguments, p99

ARENA = 256 << 20
PEERS = {
    "accelerate_disk": "accelerate disk_offload",
    "accelerate_safetensors": "accelerate, safetensors",
    "mapped": "safetensors mmap",
}


@contextlib.contextmanager
def contenders(kinds: list[str], shape: str, folder: Path, length: int, budget: int) -> Iterator[dict[str, Contender]]:
    made: dict[str, Contender] = {}
    try:
        for kind in kinds:  # one after the other: they calibrate and measure as they start
            made[kind] = Contender(kind, shape, folder, length, budget)
        yield made
    finally:
        for one in made.values():
            one.close()


def absent(kinds: list[str]) -> dict[str, str]:
    found = {}
    for kind in kinds:
        try:
            needs("accelerate" if kind.startswith("accelerate") else "safetensors", kind.split("_")[0])
        except Absent as reason:
            found[kind] = str(reason)
    return found


# Running


def running(report: Report, folder: Path, shape: str, rounds: int, peers: list[str]) -> None:
    missing = absent(peers)
    present = [kind for kind in peers if kind not in missing]
    for length in (16, 256):
        with contenders(["ours", "memory", *present], shape, folder, length, ARENA) as all_of_them:
            (file,) = folder.glob("*.packed")
            packed = Packed.open(file)
            buffer = DeviceArena(ARENA)
            nbytes = packed.nbytes - packed.begins
            read = plain(str(file), packed.begins, nbytes, memoryview(buffer.range(0, ARENA, None)))
            calls = {"io": read} | {kind: one.run for kind, one in all_of_them.items()}
            seconds: dict[str, list[float]] = {kind: [] for kind in calls}
            for call in calls.values():
                call()  # checksums are compared once
            order = list(calls)
            for number in range(rounds):
                for at in range(len(order)):
                    kind = order[(at + number) % len(order)]
                    seconds[kind].append(calls[kind]())
            facts = all_of_them["ours"].facts()
            peaks = {kind: one.peak() for kind, one in all_of_them.items()}
        against_bound(report, shape, length, seconds, facts, nbytes)
        against_peers(report, shape, length, seconds, missing)
        least_memory(report, shape, length, peaks)


def against_bound(
    report: Report, shape: str, length: int, seconds: dict[str, list[float]], facts: dict[str, Any], nbytes: int
) -> None:
    best = {kind: min(times) for kind, times in seconds.items()}
    bound = max(best["memory"], best["io"])
    halves = [min(seconds["ours"][at::2]) for at in (0, 1)]
    report.add(
        Row(
            f"offload.bound{length}", f"{SHAPES[shape]}, {format_size(ARENA)}, {length} tokens, cold",
            best["ours"] / bound, "x", "the longer of computing in memory and direct reads", bound / best["ours"],
            halves[1] / halves[0], statistics.median(seconds["ours"]), p99(seconds["ours"]), "<= 1.15",
            f"{best['ours']:.3f} s; computing {best['memory']:.3f}, reading {best['io']:.3f} "
            f"({nbytes / best['io'] / 1e9:.2f} GB/s); predicted {facts['predicted']:.3f}",
        )
    )  # fmt: skip


def against_peers(
    report: Report, shape: str, length: int, seconds: dict[str, list[float]], missing: dict[str, str]
) -> None:
    mine = min(seconds["ours"])
    halves = [min(seconds["ours"][at::2]) for at in (0, 1)]
    for kind, name in PEERS.items():
        id = f"offload.x_{kind}{length}"
        if kind in seconds:
            ratio = min(seconds[kind]) / mine
            report.add(
                Row(
                    id, f"{SHAPES[shape]}, {length} tokens, cold", ratio, "x", name, ratio, halves[1] / halves[0],
                    statistics.median(seconds["ours"]), p99(seconds["ours"]), "",
                    f"{mine:.3f} and {min(seconds[kind]):.3f} s",
                )
            )  # fmt: skip
        elif kind in missing:
            report.add(Row(id, "", None, "x", name, None, None, note=f"skipped: {missing[kind]}"))
    ratios = [min(seconds[kind]) / mine for kind in seconds if kind.startswith("accelerate")]
    if ratios:
        report.add(
            Row(
                f"offload.x_accelerate{length}", f"{SHAPES[shape]}, {length} tokens, cold", min(ratios), "x",
                "accelerate, the faster way", min(ratios), halves[1] / halves[0], bar=">= 2",
            )
        )  # fmt: skip


def least_memory(report: Report, shape: str, length: int, peaks: dict[str, int]) -> None:
    others = {kind: peak for kind, peak in peaks.items() if kind != "ours"}
    least = min(others, key=lambda kind: others[kind])
    report.add(
        Row(
            f"offload.memory{length}", f"most resident bytes while running, {length} tokens", peaks["ours"] / 2**20,
            "MiB", PEERS.get(least, "all in memory"), others[least] / peaks["ours"], None, bar="the least",
            note=", ".join(f"{PEERS.get(kind, kind)} {format_size(peak)}" for kind, peak in others.items()),
        )
    )  # fmt: skip


# Training


def training(report: Report, folder: Path, shape: str, length: int, rounds: int) -> None:
    with contenders(["train"], shape, folder, length, 0) as one:
        one["train"].run()
        one["train"].run()
        peak = one["train"].peak()
        shares = {"train50": 0.5, "train30": 0.3}
        for id, share in shares.items():
            with contenders(["train_ours"], shape, folder, length, int(peak * share)) as ours:
                calls = {"plain": one["train"].run, "ours": ours["train_ours"].run}
                seconds: dict[str, list[float]] = {"plain": [], "ours": []}
                calls["ours"]()
                for _ in range(rounds):
                    for kind, call in calls.items():
                        seconds[kind].append(call())
                facts, used = ours["train_ours"].facts(), ours["train_ours"].peak()
            mine, theirs = min(seconds["ours"]), min(seconds["plain"])
            halves = [min(seconds["ours"][at::2]) for at in (0, 1)]
            report.add(
                Row(
                    f"offload.{id}", f"{SHAPES[shape]}, a step of AdamW, {length} tokens, {share:.0%} of the memory",
                    mine / theirs, "x", "plain torch", theirs / mine, halves[1] / halves[0],
                    statistics.median(seconds["ours"]), p99(seconds["ours"]), "<= 1.15" if share == 0.5 else "<= 1.5",
                    f"{mine:.3f} and {theirs:.3f} s; predicted {facts['predicted']:.3f}; plain takes "
                    f"{format_size(peak)}, ours {format_size(facts['peak'])} by plan, {format_size(used)} resident",
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
        status.update("training...")
        training(report, folder, "train_quick" if args.quick else "train", 256, 2 if args.quick else 4)
        status.update("predicting...")
        predicting(report, folder, args.quick)
    report.finish(args.json)


if __name__ == "__main__":
    main()
