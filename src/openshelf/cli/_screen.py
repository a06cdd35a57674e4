"""The terminal. Names of arrays, hosts and files are other people's text: what a terminal would obey in it is shown.

Every command prints by `console()`, or by print() with `printable` text or JSON, which escapes by itself.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.segment import Segment


def printable(text: str) -> str:
    """The text with control characters, escape sequences and changes of direction as Python writes them: \\x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class _Shown:
    """What is printed, with its text made printable; colours and the moves of a live display are ours."""

    def __init__(self, of: ConsoleRenderable) -> None:
        self._of = of

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._of, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


class _Show(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [one if isinstance(one, Control) else _Shown(one) for one in renderables]


def console(stderr: bool = False) -> Console:
    made = Console(stderr=stderr)
    made.push_render_hook(_Show())
    return made
