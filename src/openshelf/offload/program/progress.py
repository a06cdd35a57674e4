"""What is being done, as a line on a terminal, for what may take some seconds.

Written once, by no thread that would run beside operators that are being timed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def shown(what: str) -> Iterator[None]:
    """The line is there until this ends. Nothing is written to what is no terminal."""
    terminal = sys.stderr.isatty()
    if terminal:
        print(f"\r\x1b[K{what}...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
