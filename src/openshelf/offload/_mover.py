"""A Mover brings storages from their homes into the arena, and back. The executor says when; it never looks inside.

At most one transfer of a storage is under way at a time. `reads` and `writes` count transfers that were begun: the
executor compares them with its plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Mover(Protocol):
    reads: int
    writes: int

    def begin_read(self, storage: int, offset: int) -> None:
        """Begin to fill the arena at `offset` from the home of `storage`."""

    def wait(self, storage: int) -> None:
        """Return once what `begin_read` began has ended; raise if it failed."""

    def begin_write(self, storage: int, offset: int) -> None:
        """Begin to write the bytes of `storage`, at `offset`, to its home."""

    def wait_written(self, storage: int) -> None:
        """Return once what `begin_write` began has ended; raise if it failed."""


class Copier:
    """A Mover whose homes are tensors of bytes in memory: it copies at once."""

    def __init__(self, arena: Any, homes: Mapping[int, Any]) -> None:
        self.arena, self.homes = arena, homes
        self.reads = self.writes = 0

    def begin_read(self, storage: int, offset: int) -> None:
        home = self.homes[storage]
        self.arena[offset : offset + home.numel()].copy_(home)
        self.reads += 1

    def wait(self, storage: int) -> None:
        pass

    def begin_write(self, storage: int, offset: int) -> None:
        home = self.homes[storage]
        home.copy_(self.arena[offset : offset + home.numel()])
        self.writes += 1

    def wait_written(self, storage: int) -> None:
        pass
