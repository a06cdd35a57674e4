"""Draws docs/picture.svg, the picture of the first page: `python docs/picture.py`.

It has a ground of its own, so that it reads alike on light and on dark pages.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 840, 356
INK, FAINT, GROUND = "#1f2933", "#52606d", "#ffffff"
WORKER, SHELF = "#e4e7eb", "#f5f7fa"
KV, WEIGHTS, OTHER = "#9fd3c7", "#f7c59f", "#c3bef0"
LIVE = ((152, 130), (340, 210), (443, 443), (711, 711))  # from what is on the shelf to where its bytes are


def text(x: float, y: float, words: str, size: int = 13, colour: str = INK, anchor: str = "middle") -> str:
    family = ' font-family="monospace"' if words.startswith("0x") else ""
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"{family}'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = INK, more: str = "") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.2"{more}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}" stroke-width="1.4"{more}/>'


def host(x: float, width: float, name: str) -> list[str]:
    return [
        box(x, 16, width, 76, "none", FAINT, ' stroke-dasharray="4 3"'),
        text(x + 10, 32, name, 12, FAINT, "start"),
    ]


def worker(x: float, name: str) -> list[str]:
    """A process, with the arrows of its loads and stores down to the shelf."""
    both = ' marker-start="url(#up)" marker-end="url(#down)"'
    return [box(x, 42, 150, 38, WORKER), text(x + 75, 66, name), line(x + 75, 84, x + 75, 142, both)]


def marker(name: str, turn: str) -> str:
    tip = f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/>'
    return f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="{turn}">{tip}</marker>'


def draw() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
        "<title>Processes on two hosts use the same addresses; the bytes are in memory or on flash</title>",
        f"<defs>{marker('down', 'auto')}{marker('up', 'auto-start-reverse')}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{GROUND}"/>',
        *host(20, 522, "host a"),
        *host(562, 258, "host b"),
        *worker(36, "LLM worker 1"),
        *worker(206, "LLM worker 2"),
        *worker(376, "training process"),
        *worker(616, "LLM worker 3"),
        text(463, 122, "plain loads and stores", 12, FAINT, "start"),
        box(20, 146, 800, 92, SHELF),
        text(
            34,
            166,
            "One address space: an address means the same bytes in every process, on every host.",
            13,
            INK,
            "start",
        ),
    ]
    for x, width, colour, words, address in (
        (34, 236, KV, "KV cache of shared prompts", "0x2400_0000_0000"),
        (278, 330, WEIGHTS, "weights, larger than memory", "0x2400_4000_0000"),
        (616, 190, OTHER, "arrays of host b", "0x2600_0000_0000"),
    ):
        parts += [box(x, 176, width, 50, colour), text(x + width / 2, 197, words)]
        parts.append(text(x + width / 2, 216, address, 12))
    for x, words in ((60, "memory of host a"), (343, "flash of host a"), (611, "memory of host b")):
        parts += [box(x, 280, 200, 38, GROUND, FAINT), text(x + 100, 304, words)]
    parts += [line(x1, 228, x2, 278, ' stroke-dasharray="2 3"') for x1, x2 in LIVE]
    parts.append(
        text(
            420,
            342,
            "Bytes move, addresses do not. A space spans several hosts, or continues on flash (not both yet).",
            12,
            FAINT,
        )
    )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("picture.svg").write_text(draw())
