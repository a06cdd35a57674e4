"""A Program: what a captured model does, as the planner sees it. No tensors, only operators, storages and bytes.

Everything that shares memory is one storage: tied weights, views, in-place results. An operator names the storages it
reads, changes and makes. That, with a time for each operator, is all that a plan needs, so planners can be tested
without torch, and the same plan can be run for real or in virtual time.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Kind = Literal["weight", "buffer", "input", "activation", "gradient", "state", "kv", "output"]
Phase = Literal["forward", "backward", "update"]


@dataclasses.dataclass(frozen=True)
class Storage:
    """Bytes that live and move together.

    `given`: it has a value before the first operator, which is at its home (a file on flash, or host memory).
    `kept`: its value after the last operator is wanted: a changed one has to be stored, an output to be handed out.
    """

    index: int
    name: str
    nbytes: int
    kind: Kind
    given: bool = False
    kept: bool = False


@dataclasses.dataclass(frozen=True)
class Op:
    """One operator. All storages it touches are in the arena while it runs, and `workspace` bytes besides.

    `again`: run twice on the same storages it gives the same bytes, so that what it makes may be made anew instead of
    kept (not: random numbers, in-place changes).
    """

    index: int
    name: str
    reads: tuple[int, ...]
    changes: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    workspace: int = 0
    seconds: float = 0.0
    again: bool = True
    phase: Phase = "forward"
    where: str = ""  # module path and source line, for people

    @property
    def touches(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.reads + self.changes + self.makes))


@dataclasses.dataclass(frozen=True)
class Program:
    """Operators in the order in which they run, and their storages; `key` is equal for equal programs only."""

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    key: str = ""
