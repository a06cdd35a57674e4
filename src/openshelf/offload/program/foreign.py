"""Errors of other libraries, told as ours: who catches OpenshelfError catches all that a model or torch may raise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from openshelf.errors import OpenshelfError


@contextlib.contextmanager
def told_as(kind: type[OpenshelfError], what: str) -> Iterator[None]:
    """What others raise in here is raised as `kind`, with `what` before it, but for errors of files and of memory."""
    try:
        yield
    except (OpenshelfError, OSError, MemoryError):
        raise
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {error}") from error
