"""The steps of a plan: what the executor does, in this order. Transfers are steps among the operators.

    Prefetch s @offset   begin to read s from its home into the arena at offset
    Wait s               until that read has ended
    Run op               the operator; `offsets` are where the storages that it makes begin, then where its workspace is
    Store s              begin to write s to its home; s stays where it is, and may be read
    Detach s             s leaves the arena, once its Store, if one is under way, has ended; its bytes are free

What was made or changed since it was last stored is lost by Detach: a plan does that only to what nobody reads again,
or what is made anew by running its operator again. An operator runs only between Wait (or the Run that made it) and
Detach of everything it touches, and nothing may change s between Store and Detach.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Prefetch:
    storage: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Wait:
    storage: int


@dataclasses.dataclass(frozen=True)
class Run:
    op: int
    offsets: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Store:
    storage: int


@dataclasses.dataclass(frozen=True)
class Detach:
    storage: int


Step = Prefetch | Wait | Run | Store | Detach
