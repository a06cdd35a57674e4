"""A plan as a picture: memory over time, by kind, and below it what compute and each lane do. SVG, written by hand.

All times are predicted. What is narrower than a pixel is drawn together with its neighbours, so that a program of
thousands of operators is a picture of some hundred kilobytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from openshelf.show.times import format_time
from openshelf.show.trace import ROWS, kind_of
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.offload import Change, Plan, Span

LEFT, WIDTH, MEMORY, ROW = 96, 1080, 260, 30  # pixels: margin, all of time, memory's height, a lane's height
TOP = 66
COLOURS = {
    "weight": "#4c78a8", "buffer": "#9ecae9", "input": "#b279a2", "output": "#d6a5c9", "activation": "#54a24b",
    "gradient": "#f58518", "state": "#e45756", "kv": "#72b7b2", "workspace": "#bab0ac",
    "forward": "#54a24b", "backward": "#f58518", "update": "#e45756", "wait": "#222222",
}  # fmt: skip


def plan_svg(plan: Plan) -> str:
    """The picture, as text."""
    times = plan.timeline()
    lanes = [lane for lane in ROWS if any(span.lane == lane for span in times.spans)]
    total = times.seconds or 1.0
    bottom = TOP + MEMORY + 34
    height = bottom + ROW * len(lanes) + 34
    kinds = [kind for kind in COLOURS if any(kind_of(plan, change.storage) == kind for change in times.changes)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 24} {height}" '
        f'width="{LEFT + WIDTH + 24}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDTH + 24}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 20, f"{len(plan.program.ops)} operators, predicted: {format_time(times.seconds)}, of it waiting "
              f"{format_time(times.exposed)}; arena {format_size(plan.peak)} of {format_size(plan.budget)}"),
        *_legend(LEFT, 32, kinds),
        *_legend(LEFT, TOP + MEMORY + 10, list(dict.fromkeys(op.phase for op in plan.program.ops))),
        *_memory(plan, times.changes, kinds, total),
    ]  # fmt: skip
    for row, lane in enumerate(lanes):
        top = bottom + ROW * row
        parts.append(_text(LEFT - 8, top + 17, lane.replace("_", " "), "end"))
        parts += _lane(plan, [span for span in times.spans if span.lane == lane], top, total)
    parts += _axis(total, bottom, height - 34)
    return "\n".join([*parts, "</svg>", ""])


def _legend(at: int, top: int, names: Sequence[str]) -> list[str]:
    parts = []
    for name in names:
        parts.append(f'<rect x="{at}" y="{top}" width="12" height="12" fill="{COLOURS[name]}"/>')
        parts.append(_text(at + 17, top + 10, name))
        at += 34 + 7 * len(name)
    return parts


def levels(plan: Plan, changes: tuple[Change, ...], kinds: list[str], total: float) -> list[list[int]]:
    """For each pixel of time the bytes of every kind at the moment in it when the arena was fullest."""
    now = dict.fromkeys(kinds, 0)
    columns: list[list[int]] = [[] for _ in range(WIDTH)]
    # All that happens in one moment is one change: what comes may have the place of what leaves.
    groups = itertools.groupby(sorted(changes, key=lambda change: change.when), key=lambda change: change.when)
    last = 0
    for when, group in groups:
        column = min(WIDTH - 1, int(when / total * WIDTH))
        for between in range(last, column + 1):
            columns[between] = _fuller(columns[between], list(now.values()))
        for change in group:
            now[kind_of(plan, change.storage)] += change.nbytes
        columns[column] = _fuller(columns[column], list(now.values()))
        last = column
    for between in range(last, WIDTH):
        columns[between] = _fuller(columns[between], list(now.values()))
    return columns


def _fuller(one: list[int], other: list[int]) -> list[int]:
    return one if sum(one) >= sum(other) and one else other


def _memory(plan: Plan, changes: tuple[Change, ...], kinds: list[str], total: float) -> list[str]:
    most = max(plan.peak, 1) * 1.08
    columns = levels(plan, changes, kinds, total)
    parts = []
    below = [0] * WIDTH
    for number, kind in enumerate(kinds):
        above = [low + column[number] for low, column in zip(below, columns, strict=True)]
        edge = " ".join(_steps(above, most))
        back = " ".join(reversed(_steps(below, most)))
        parts.append(f'<polygon fill="{COLOURS[kind]}" points="{edge} {back}"><title>{kind}</title></polygon>')
        below = above
    for label, nbytes in (("0", 0), (format_size(plan.peak), plan.peak)):
        y = _y(nbytes, most)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#888888"/>')
        parts.append(_text(LEFT - 8, y + 4, label, "end"))
    return parts


def _steps(values: list[int], most: float) -> list[str]:
    """Corners of a line that is level and jumps."""
    points, at = [], 0
    for value, run in itertools.groupby(values):
        length, y = len(list(run)), _y(value, most)
        points += [f"{LEFT + at},{y}", f"{LEFT + at + length},{y}"]
        at += length
    return points


def _y(nbytes: int, most: float) -> float:
    return round(TOP + MEMORY * (1 - nbytes / most), 1)


def _lane(plan: Plan, spans: list[Span], top: int, total: float) -> list[str]:
    drawn: list[tuple[float, float, str, str]] = []  # from, to, colour, title
    for span in sorted(spans, key=lambda span: span.start):
        begin, end = (LEFT + WIDTH * when / total for when in (span.start, span.end))
        title = f"{span.name}, {format_time(span.end - span.start)}"
        colour = COLOURS[_shade(plan, span)]
        if drawn and drawn[-1][2] == colour and end - drawn[-1][0] < 1:
            drawn[-1] = (drawn[-1][0], end, colour, f"{drawn[-1][3].split(' ... ')[0]} ... {title}")
        else:
            drawn.append((begin, end, colour, title))
    return [
        f'<rect x="{begin:.2f}" y="{top}" width="{max(end - begin, 0.6):.2f}" height="{ROW - 6}" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="{0.4 if end - begin > 3 else 0}"><title>{escape(title)}</title></rect>'
        for begin, end, colour, title in drawn
    ]


def _shade(plan: Plan, span: Span) -> str:
    if span.lane == "compute":
        return plan.program.ops[span.number].phase
    return "wait" if span.lane == "wait" else plan.program.storages[span.number].kind


def _axis(total: float, top: int, bottom: int) -> list[str]:
    step = 10.0 ** math.floor(math.log10(total))
    step = next(one for one in (step / 5, step / 2, step, step * 2) if total / one <= 8)
    parts = []
    for number in range(int(total / step) + 1):
        x = round(LEFT + WIDTH * number * step / total, 1)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{top}" y2="{bottom + 4}" stroke="#cccccc" stroke-width="0.5"/>')
        parts.append(_text(x, bottom + 20, format_time(number * step) if number else "0", "middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#222222">{escape(text)}</text>'
