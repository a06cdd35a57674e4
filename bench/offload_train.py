"""Training within a budget, against plain torch and recomputation.

All on two threads, in float32, AdamW. `offload.train` is a step within a share of the memory that plain torch takes for
it. `offload.utilisation` compares samples per second at one budget, which is what checkpointed layers take for a batch
beside weights, gradients and states: ours has these on flash, so that a larger batch fits. The curve has a step's
seconds by budget, and beside it what checkpointing and torch's min-cut partitioner (by its `activation_memory_budget`,
without a compiler of kernels) take for a step and for memory. DeepSpeed and the curve are left out of quick runs.
`offload.train30_busy` is train30 while another program has one core for itself, plain torch's steps too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from rich.console import Console

from kit import page_cache
from kit.servers import Absent, needs
from kit.side_by_side import Report, Row, arguments, one_core_taken, p99
from offload import contenders, in_turn, spread
from openshelf.space import format_size
from processes.offload_shapes import SHAPES

SHARES = (("train50", 0.5, "<= 1.15"), ("train30", 0.3, "<= 1.5"))
CURVE = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2)
MIN_CUT = (80, 50, 20)  # percent
DEEPSPEED = "DeepSpeed ZeRO-3, all on NVMe, checkpointed layers"
LENGTH = 256
BESIDE = 40 << 20  # what a process of ours has beside its arena: plans, programs, buffers of libraries


def training(report: Report, folder: Path, shape: str, rounds: int) -> int:
    """The rows of both shares; returns what plain torch takes."""
    with contenders(["train"], shape, folder, LENGTH) as one:
        one["train"].run()
        peak = one["train"].peak()
        for id, share, bar in SHARES:
            with contenders(["train_ours"], shape, folder, LENGTH, int(peak * share)) as ours:
                sides = {"plain": one["train"].run, "ours": ours["train_ours"].run}
                seconds = in_turn(sides, rounds)
                facts, used = ours["train_ours"].facts(), ours["train_ours"].peak()
                if id == "train30":
                    with one_core_taken():
                        busy = in_turn(sides, rounds)
            mine, theirs = min(seconds["ours"]), min(seconds["plain"])
            report.add(
                Row(
                    f"offload.{id}", f"{SHAPES[shape]}, a step of AdamW, {LENGTH} tokens, {share:.0%} of the memory",
                    mine / theirs, "x", "plain torch", theirs / mine, spread(seconds["ours"]),
                    statistics.median(seconds["ours"]), p99(seconds["ours"]), bar,
                    f"{mine:.3f} and {theirs:.3f} s; predicted {facts['predicted']:.3f}; plain takes "
                    f"{format_size(peak)}, ours {format_size(facts['peak'])} by plan, {format_size(used)} resident",
                )
            )  # fmt: skip
    bar = f"<= {2 * mine / theirs:.3g}, twice the quiet one"
    mine, theirs = min(busy["ours"]), min(busy["plain"])
    report.add(
        Row(
            "offload.train30_busy", f"{SHAPES[shape]}, the same as train30, one core taken", mine / theirs, "x",
            "plain torch", theirs / mine, spread(busy["ours"]), statistics.median(busy["ours"]), p99(busy["ours"]), bar,
            f"{mine:.3f} and {theirs:.3f} s",
        )
    )  # fmt: skip
    return peak


def utilisation(report: Report, folder: Path, shape: str, few: int, rounds: int) -> None:
    many = 4 * few
    with contenders(["train_checkpointed"], shape, folder, LENGTH, count=few) as there:
        theirs = there["train_checkpointed"]
        theirs.run()
        theirs.run()
        budget = theirs.peak()
        with contenders(["train_ours"], shape, folder, LENGTH, budget - BESIDE, many) as ours:
            seconds = in_turn({"ours": ours["train_ours"].run, "theirs": theirs.run}, rounds)
            used = ours["train_ours"].peak()
    mine, other = many / min(seconds["ours"]), few / min(seconds["theirs"])
    report.add(
        Row(
            "offload.utilisation", f"{SHAPES[shape]}, samples of {LENGTH} tokens a second within {format_size(budget)}",
            mine / other, "x", "checkpointed layers", mine / other,
            spread(seconds["ours"]), statistics.median(seconds["ours"]), p99(seconds["ours"]), ">= 1.10",
            f"batches of {many} and {few}: {mine:.3f} and {other:.3f} a second; ours takes {format_size(used)}",
        )
    )  # fmt: skip


def against_deepspeed(report: Report, folder: Path, shape: str, plain: int, rounds: int) -> None:
    """Checkpointed layers, parameters and states on NVMe: a step of ours at 30 % of plain's memory, or within what
    DeepSpeed takes if that is less."""
    try:
        needs("deepspeed", "deepspeed")
    except Absent as reason:
        note = f"skipped: {reason}"
        report.add(Row("offload.x_deepspeed_train", "", None, "x", DEEPSPEED, None, None, note=note))
        return
    with contenders(["train_deepspeed"], shape, folder, LENGTH) as there:
        theirs = there["train_deepspeed"]
        theirs.run()
        budget = min(int(plain * 0.3), theirs.peak() - BESIDE)
        with contenders(["train_ours"], shape, folder, LENGTH, budget) as ours:
            seconds = in_turn({"ours": ours["train_ours"].run, "theirs": theirs.run}, rounds)
            used, used_there = ours["train_ours"].peak(), theirs.peak()
    mine, other = min(seconds["ours"]), min(seconds["theirs"])
    report.add(
        Row(
            "offload.x_deepspeed_train", f"{SHAPES[shape]}, a step of AdamW, {LENGTH} tokens, {format_size(budget)}",
            other / mine, "x", DEEPSPEED, other / mine, spread(seconds["ours"]), statistics.median(seconds["ours"]),
            p99(seconds["ours"]), "> 1",
            f"{mine:.3f} and {other:.3f} s; ours takes {format_size(used)}, DeepSpeed {format_size(used_there)}",
        )
    )  # fmt: skip


def curve(report: Report, folder: Path, shape: str, plain: int, rounds: int) -> None:
    """Seconds of a step by memory: ours at shares of what plain torch takes, others where they come out."""
    for id, kind, percent, name in (
        ("checkpointed", "train_checkpointed", 0, "checkpointed layers"),
        *((f"min_cut{share}", "train_min_cut", share, f"min-cut, {share} % of activations") for share in MIN_CUT),
    ):
        with contenders([kind], shape, folder, LENGTH, percent) as there:
            seconds = in_turn({kind: there[kind].run}, rounds)[kind]
            report.add(point(f"offload.curve_{id}", shape, seconds, there[kind].peak(), plain, name))
    for share in CURVE:
        with contenders(["train_ours"], shape, folder, LENGTH, int(plain * share)) as there:
            seconds = in_turn({"ours": there["train_ours"].run}, rounds)["ours"]
            report.add(point(f"offload.curve{share:.0%}"[:-1], shape, seconds, there["train_ours"].peak(), plain, ""))


def point(id: str, shape: str, seconds: list[float], peak: int, plain: int, peer: str) -> Row:
    case = f"{SHAPES[shape]}, seconds of a step, {peak / plain:.0%} of the memory of plain torch"
    return Row(
        id, case, min(seconds), "s", peer, None, spread(seconds), statistics.median(seconds), p99(seconds),
        note=f"{format_size(peak)} resident",
    )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "")
    report = Report("Offload: training within a budget")
    with (
        tempfile.TemporaryDirectory(dir=page_cache.disk(), prefix="openshelf-bench-") as at,
        Console(stderr=True).status("") as status,
    ):
        folder = Path(at)
        os.environ["OPENSHELF_CACHE"] = os.environ["XDG_CACHE_HOME"] = at
        shape, rounds = ("train_quick", 2) if args.quick else ("full", 4)
        status.update("training...")
        plain = training(report, folder, shape, rounds)
        status.update("as many samples as fit...")
        utilisation(report, folder, "train_quick", 1 if args.quick else 2, 1 if args.quick else 4)
        if not args.quick:
            status.update("DeepSpeed...")
            against_deepspeed(report, folder, shape, plain, 2)
            status.update("budgets...")
            curve(report, folder, shape, plain, 2)
    report.finish(args.json)


if __name__ == "__main__":
    main()
