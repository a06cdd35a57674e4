"""Memory against message semantics as a plot: seconds over bytes, both logarithmic, a line for each protocol. SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from openshelf.fabric import Priced
from openshelf.show.times import format_time
from openshelf.space import format_size

LEFT, TOP, WIDTH, HEIGHT, RIGHT = 80, 50, 640, 400, 150  # pixels
COLOURS = {
    "memory": ("#1b7837", "#54a24b", "#a6dba0", "#72b7b2", "#4c78a8"),
    "message": ("#f58518", "#e45756", "#b279a2", "#9d755d", "#bab0ac"),
}


def same_wires_svg(priced: Sequence[Priced], title: str) -> str:
    """The plot, as text; dashed where figures are extrapolated."""
    sizes = sorted({each.nbytes for each in priced})
    low = 10.0 ** math.floor(math.log10(min(each.seconds for each in priced)))
    high = 10.0 ** math.ceil(math.log10(max(each.seconds for each in priced)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + RIGHT}" height="{TOP + HEIGHT + 50}" '
        f'viewBox="0 0 {LEFT + WIDTH + RIGHT} {TOP + HEIGHT + 50}" font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDTH + RIGHT}" height="{TOP + HEIGHT + 50}" fill="#ffffff"/>',
        _text(LEFT, 20, title),
        _text(LEFT, 38, "modelled; green and blue: loads, warm colours: messages; dashed: beyond the sizes known"),
    ]

    def at(nbytes: int, seconds: float) -> tuple[float, float]:
        x = LEFT + WIDTH * math.log(nbytes / sizes[0]) / math.log(sizes[-1] / sizes[0])
        return round(x, 1), round(TOP + HEIGHT * (1 - math.log(seconds / low) / math.log(high / low)), 1)

    for nbytes in sizes:
        x, y = at(nbytes, low)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{y}" stroke="#eeeeee"/>')
        parts.append(_text(x, y + 18, format_size(nbytes), "middle"))
    for power in range(round(math.log10(high / low)) + 1):
        x, y = at(sizes[0], low * 10**power)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y}" y2="{y}" stroke="#dddddd"/>')
        parts.append(_text(x - 6, y + 4, format_time(low * 10**power), "end"))
    used = {"memory": 0, "message": 0}
    for row, name in enumerate(dict.fromkeys(each.protocol for each in priced)):
        line = [each for each in priced if each.protocol == name]
        kind = line[0].semantics
        colour = COLOURS[kind][used[kind] % len(COLOURS[kind])]
        used[kind] += 1
        for one, other in pairwise(line):
            (x1, y1), (x2, y2) = at(one.nbytes, one.seconds), at(other.nbytes, other.seconds)
            dash = ' stroke-dasharray="5 4"' if one.beyond or other.beyond else ""
            parts.append(
                f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="2"{dash}>'
                f"<title>{escape(name)}</title></line>"
            )
        label_y = TOP + 14 + 20 * row
        parts.append(f'<rect x="{LEFT + WIDTH + 14}" y="{label_y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(LEFT + WIDTH + 32, label_y, name))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#222222">{escape(text)}</text>'
