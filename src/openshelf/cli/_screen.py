"""The terminal. Names of arrays, hosts and files are other people's text: what a terminal would obey in it is shown.

Every command prints by `console()`, or by print() with `printable` text or JSON, which escapes by itself. Nothing is
cut off: in a pipe or a file lines are as long as they need to be, on a terminal words that do not fit go on below.
"""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.control import Control
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

_ANY = 1 << 20  # columns of what is no terminal


def printable(text: str) -> str:
    """The text with control characters, escape sequences and changes of direction as Python writes them: \\x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def cell(text: str) -> str:
    """Other people's text for a cell of a table: on one line, and no markup."""
    return escape(printable(text).replace("\n", "\\n"))


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
        for one in renderables:
            if isinstance(one, Table):
                for column in one.columns:
                    column.overflow = "fold"
        return [one if isinstance(one, Control) else _Shown(one) for one in renderables]


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Left to main(): by itself it ends the process as if something had failed."""
        raise BrokenPipeError


def console(stderr: bool = False, width: int = _ANY) -> Console:
    """`width`: of what is no terminal, for text that is to be read there."""
    made = _Console(stderr=stderr)
    if not made.is_terminal:
        made.width = width
    made.push_render_hook(_Show())
    return made
