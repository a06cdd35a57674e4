"""work.dualpipe: the all-to-alls of DeepSeek's published profile that nothing hides, predicted by the twin's DualPipe.

From the profile come how long kernels ran, never when: the order and what waits for what are the twin's. How long
computing pauses after a kernel is taken from where no all-to-all runs, and judged where one does.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.side_by_side import Row
from openshelf.workloads.train import overlapped

Span = tuple[float, float]
SLACK = 5.0  # microseconds between launches on two streams
COMPUTE = ("attention_f", "mlp_b", "mlp_w", "mlp_f", "attention_b")


@dataclass(frozen=True)
class Kernel:
    start: float
    end: float
    stream: str
    kind: str


def read(path: Path) -> list[Kernel]:
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    starts = [float(line["start_us"]) for line in lines]
    return [
        Kernel(start, start + float(line["us"]), line["stream"], line["kind"])
        for start, line in zip(starts, lines, strict=True)
    ]


def joined(spans: list[Span]) -> list[Span]:
    made: list[Span] = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    return made


def length(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)


def both(one: list[Span], other: list[Span]) -> float:
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


def layers(kernels: list[Kernel]) -> tuple[list[dict[str, float]], list[Span], list[Span]]:
    """Of every layer how long each part ran, and when anything travelled or was computed."""
    travel_stream = next(each.stream for each in kernels if each.kind == "combine")
    travel = [each for each in kernels if each.stream == travel_stream]  # with what makes ready what is sent
    compute = [each for each in kernels if each.stream != travel_stream]
    main = max({each.stream for each in compute}, key=lambda stream: sum(e.stream == stream for e in compute))
    combines = [at for at, each in enumerate(travel) if each.kind == "combine"]
    first, made = 0, []
    begins = 0.0
    for at in range(0, len(combines) - 1, 2):
        own = travel[first : combines[at + 1] + 1]
        first = combines[at + 1] + 1
        ends = float("inf")
        if first < len(travel):  # what is sent next is made ready beside the gradients of attention's weights
            ends = travel[first].start - SLACK
        made.append(_parts(own, [each for each in compute if begins <= each.start < ends], main))
        begins = ends
    sent = joined([(each.start, each.end) for each in travel if each.kind in ("dispatch", "combine")])
    return made, sent, joined([(e.start, e.end) for e in compute])


def _parts(travel: list[Kernel], compute: list[Kernel], main: str) -> dict[str, float]:
    """Marks in the order of kernels: the second dispatch's layout, gradients of weights beside, the last combine."""
    ends = [
        at for at, each in enumerate(travel) if each.kind in ("dispatch", "combine") and each.end - each.start > 500
    ]
    names = ("dispatch_b", "dispatch_f", "combine_b", "combine_f")
    made, begin = {}, 0
    for name, end in zip(names, ends, strict=True):
        made[name] = sum(each.end - each.start for each in travel[begin : end + 1])
        begin = end + 1
    layout = travel[ends[0] + 1].start
    beside = [each for each in compute if each.stream != main]
    weights, after = min(e.start for e in beside), max(e.end for e in beside)
    back = travel[ends[2] + 1].start
    marks = [0.0, layout, weights, after, back, float("inf")]
    for part, low, high in zip(COMPUTE, marks[:-1], marks[1:], strict=True):
        made[part] = length(joined([(e.start, e.end) for e in compute if low <= e.start < high]))
    return made


def rows(data: Path) -> Iterator[Row]:
    path = data / "training" / "deepseek_dualpipe_kernels.csv"
    if not path.exists():
        yield Row("work.dualpipe", "", None, "%", "", None, None, bar="<= 15", note="no data here")
        return
    kernels = read(path)
    found, travel, compute = layers(kernels)
    measured = length(travel) - both(travel, compute)
    stream = next(each.stream for each in kernels if each.kind == "combine")
    busy = joined([(each.start, each.end) for each in kernels if each.stream == stream and each.kind != "other"])
    launched = [each for each in kernels if each.stream != stream]
    alone = sum(not any(low <= each.start < high for low, high in busy) for each in launched)
    end = max(busy[-1][1], compute[-1][1])
    pause = (end - length(busy) - length(compute) + both(busy, compute)) / alone
    pauses = pause * len(launched) / (length(compute) + pause * len(launched))
    slowed = dict.fromkeys(COMPUTE, 1 / (1 - pauses))
    stretched = [{part: span * slowed.get(part, 1.0) for part, span in each.items()} for each in found]
    waits = sum(chunk.exposed_s for chunk in overlapped([*stretched]))
    said = waits + pauses * (length(travel) - waits)
    error = 100 * abs(said / measured - 1)
    wide = (waits + pauses * (length(busy) - waits)) / (length(busy) - both(busy, compute)) - 1
    note = (
        f"{len(found)} layers, dispatch and combine; measured {measured / 1e3:.2f} of {length(travel) / 1e3:.0f} ms, "
        f"said {said / 1e3:.2f} ms, {waits / 1e3:.2f} of it waiting; with the kernels that wait for peers before them "
        f"{100 * wide:+.0f} %"
    )
    yield Row(
        "work.dualpipe", "all-to-all that nothing hides", error, "%", "measured", said / measured, None, bar="<= 15",
        note=note,
    )  # fmt: skip
