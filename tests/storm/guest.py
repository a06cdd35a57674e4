"""A worker of a space over two hosts. Names with even numbers live on host 0, the others on host 1.

Nobody removes a host's part while it is open there, so the storm asks everybody to leave first. A keeper that is
killed is replaced, and what it was at in that instant may end with HostLost; a host that answers too late is lost, and
a touch of its bytes ends the process. For some seconds after the storm had its hand on a keeper both are lawful, and
so is a name that seems to be missing while a host does not answer. A wrong byte never is.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from typing import Any

from openshelf import Array, Space
from openshelf.errors import BadInput, HostLost, NoAgreement, OpenshelfError, UnknownName
from tests.storm.ledger import REMOVING, SINCE_NS, SPACES, Change, Problem
from tests.storm.member import TITLES, Handle, Held, life_of
from tests.storm.plan import Operation
from tests.storm.worker import TROUBLE_S, Worker

HOSTS = 2
CONTRIBUTE = "64MiB"
_PATIENCE_S = 60.0


def home_of(name: int) -> int:
    return name % HOSTS


def lost(error: OpenshelfError) -> bool:
    """Whether a host that does not answer is the reason; a name may be there."""
    return isinstance(error, HostLost | NoAgreement) or "did not answer" in str(error)


class Guest(Worker):
    def where(self, index: int) -> str:
        return f"{os.environ['STORM_URL']}/{TITLES[index]}"

    def contested(self, index: int) -> bool:
        return False

    def owns(self, index: int) -> bool:
        return False

    def homes(self, name: int) -> dict[str, Any]:
        return {"home": home_of(name)}

    def excuse(self, error: OpenshelfError, index: int) -> None:
        if not self.troubled():
            raise Problem(f"no keeper was touched for {TROUBLE_S} s, and yet {error!r}") from error
        self.forget(index)

    def forget(self, index: int) -> None:
        self.leave(index)
        self.views = [held for held in self.views if held.number != index]
        gc.collect()

    def made_way(self, index: int) -> bool:
        return bool(self.book.left[index, self.slot] == self.book.lives[index])

    def before_step(self) -> None:
        """Makes way for the storm, which wants to remove a space."""
        for index in range(SPACES):
            if self.book.life(index)[1] == REMOVING and not self.made_way(index):
                self.reap()
                self.look_again()
                self.forget(index)
                self.book.left[index, self.slot] = self.book.lives[index]

    def enter(self, index: int, mode: str = "rw", *allowed: type[OpenshelfError]) -> Handle | None:
        if index in self.handles or self.made_way(index):
            return self.handles.get(index)
        try:
            space = Space.open(self.where(index), mode, contribute=CONTRIBUTE)
            life = life_of(space, index)
        except (HostLost, UnknownName, OpenshelfError) as error:
            if isinstance(error, BadInput):
                raise
            self.excuse(error, index)
            return None
        if life != self.book.life(index)[0]:
            raise Problem(f"{TITLES[index]} is of life {life}, not of {self.book.life(index)[0]}")
        self.handles[index] = Handle(space, index, life)
        return self.handles[index]

    @contextlib.contextmanager
    def law(self, handle: Handle, *allowed: type[OpenshelfError]) -> Iterator[None]:
        try:
            with super().law(handle, *allowed):
                yield
        except (HostLost, NoAgreement, UnknownName) as error:
            if not lost(error):
                raise
            self.excuse(error, handle.number)

    @contextlib.contextmanager
    def changing(self, handle: Handle, change: Change) -> Iterator[None]:
        self.book.begin(handle.number, self.slot, change)
        happened = True
        try:
            yield
        except (HostLost, NoAgreement, UnknownName) as error:
            if not lost(error):
                raise
            self.excuse(error, handle.number)
            happened = self.settle(handle.number, change)
        self.book.end(handle.number, self.slot, change, happened)

    def settle(self, index: int, change: Change) -> bool:
        """Whether a change happened that ended with an error, or with its process."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            self.row[SINCE_NS] = time.monotonic_ns()
            if self.book.life(index)[0] != change.life:
                return True  # that life is over
            handle = self.enter(index)
            try:
                if handle and self.all_up(handle):
                    happened = self.happened(handle, change)
                    if self.all_up(handle):
                        return happened
            except (HostLost, NoAgreement, UnknownName) as error:
                if not lost(error):
                    raise
                self.excuse(error, index)
            time.sleep(0.02)
        raise Problem(f"it cannot be found out whether {change} happened: a host stays lost")

    def all_up(self, handle: Handle) -> bool:
        return all(host["up"] for host in handle.space.hosts())

    def resolve(self) -> None:
        for index in range(SPACES):
            if change := self.book.pending(index, self.slot):
                self.book.end(index, self.slot, change, self.settle(index, change))

    def read(self, handle: Handle, owner: int, name: int) -> tuple[Array, Held] | None:
        try:
            return super().read(handle, owner, name)
        except Problem:
            missing = handle.space.get(self.title(name, owner)) is None
            if missing and self.troubled() and not self.all_up(handle):
                return None
            raise

    def rename(self, step: Operation) -> None:
        if home_of(step.name) == home_of(step.other):
            super().rename(step)

    def send(self, step: Operation) -> None:
        """A channel takes arrays of its own home."""
        super().send(step._replace(name=step.name - home_of(step.name)))

    def fetch(self, step: Operation) -> None:
        """Bytes without faults."""
        if found := self.some(step):
            with self.law(found[0]):
                handle, array = found
                copy = array.numpy().copy()
                handle.space.get(array, copy).wait()
                content = int(copy[0]) >> 1 & 0x7FFF_FFFF
                self.keep(Held(copy, handle.number, handle.life, step.owner, content))
