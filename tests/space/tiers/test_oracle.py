"""Random operations of several processes against plain copies: whatever moves when, every read is right."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import NoRoom, NotPermitted
from tests.processes import Peer, State
from tests.space.tiers.conftest import FORCED, with_faults
from tests.space.tiers.shelves import DRAM, KIB, MIB, UNIT, Words, make, push

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"
SECONDS = 300.0 if SOAK else 4.0
NAMES = 8


def random_words(seed: int, count: int) -> Words:
    return np.random.default_rng(seed).integers(1, 1 << 63, count, np.uint64)


def _open(state: State, faults: str) -> None:
    os.environ["OPENSHELF_FAULTS"] = faults
    state.update(space=Space.open("shelf"), views={}, pins={})


def _put(state: State, name: str, seed: int, count: int) -> None:
    state["views"].pop(name, None)
    state["space"].put(name, random_words(seed, count))


def _zeros(state: State, name: str, count: int) -> None:
    state["views"].pop(name, None)
    state["space"].delete(name)
    state["space"].zeros(name, count, "uint64")


def _view(state: State, name: str) -> Words:
    """Kept from call to call, so that old page tables are used again."""
    array = state["space"][name]
    kept = state["views"].get(name)
    if kept is None or kept[0] != array.address:
        state["views"][name] = kept = (array.address, array.numpy())
    view: Words = kept[1]
    return view


def _store(state: State, name: str, first: int, seed: int, count: int) -> None:
    _view(state, name)[first : first + count] = random_words(seed, count)


def _load(state: State, name: str, first: int, count: int) -> bytes:
    return _view(state, name)[first : first + count].tobytes()


def _store_by_address(state: State, name: str, first: int, seed: int, count: int) -> None:
    array = state["space"][name]
    state["space"].put(array.address + 8 * first, random_words(seed, count)).wait()


def _load_by_address(state: State, name: str, first: int, count: int) -> bytes:
    out = np.zeros(count, np.uint64)
    state["space"].get(state["space"][name].address + 8 * first, out).wait()
    return out.tobytes()


def _move(state: State, name: str, what: str, first: int, count: int) -> None:
    part = state["space"][name][first : first + count]
    try:
        if what == "demote":
            part.demote().wait()
        elif what == "prefetch":
            part.prefetch().wait()
        elif what == "pin":
            state["pins"][name] = part.pin()
            state["pins"][name].wait()
        else:
            state["pins"].pop(name, None)
            state["views"].pop(name, None)
    except (NoRoom, NotPermitted):  # too much is pinned
        state["pins"].clear()
        state["views"].clear()


def _push(state: State) -> None:
    push(state["space"], DRAM)


class Oracle:
    """The processes, and what every array must hold."""

    def __init__(self, peers: list[Peer], plain: list[Peer], seed: int) -> None:
        self.random, self.peers, self.plain = random.Random(seed), peers + plain, plain
        self.copies: dict[str, Words] = {}
        for peer in peers:
            peer.call(_open, FORCED)
        for peer in plain:
            peer.call(_open, "off")

    def seed(self) -> int:
        return self.random.getrandbits(32)

    def range_of(self, name: str) -> tuple[int, int]:
        size = self.copies[name].size
        first = self.random.randrange(size)
        most = self.random.choice([1, 8, UNIT // 8, MIB // 8])
        return first, min(size - first, self.random.randint(1, most))

    def step(self) -> None:
        peer = self.random.choice(self.peers)
        kind = self.random.random()
        name = self.random.choice(list(self.copies)) if self.copies else None
        by_address = peer in self.plain or kind < 0.2
        if name is None or kind < 0.06:
            self.make(peer)
        elif kind < 0.4:
            first, count = self.range_of(name)
            seed = self.seed()
            peer.call(_store_by_address if by_address else _store, name, first, seed, count)
            self.copies[name][first : first + count] = random_words(seed, count)
        elif kind < 0.75:
            self.compare(peer, name, *self.range_of(name))
        elif kind < 0.98:
            what = self.random.choice(["demote", "demote", "demote", "prefetch", "pin", "let go", "let go"])
            peer.call(_move, name, what, *(self.range_of(name) if kind < 0.9 else (0, self.copies[name].size)))
        else:
            peer.call(_push)

    def make(self, peer: Peer) -> None:
        name, count = f"a{self.random.randrange(NAMES)}", self.random.randint(1, 6 * MIB) // 8 + 40 * KIB
        if name in self.copies and self.random.random() < 0.4:
            peer.call(_zeros, name, count)
            self.copies[name] = np.zeros(count, np.uint64)
        else:
            seed = self.seed()
            peer.call(_put, name, seed, count)
            self.copies[name] = random_words(seed, count)

    def compare(self, peer: Peer, name: str, first: int, count: int) -> None:
        how: Any = _load_by_address if peer in self.plain or self.random.random() < 0.2 else _load
        found = np.frombuffer(peer.call(how, name, first, count), np.uint64)
        wrong = np.flatnonzero(found != self.copies[name][first : first + count])
        assert not wrong.size, f"{name}[{first + wrong[0]}] is {found[wrong[0]]:#x}, {wrong.size} words are wrong"


@with_faults
@pytest.mark.parametrize("seed", range(20) if SOAK else [1, 2, 3])
def test_every_read_is_right(home: Path, disk: Path, mode: str, seed: int) -> None:
    space = make(disk)
    kinds = [(1, 0), (2, 0), (2, 1)][seed % 3]
    peers, plain = ([Peer("forkserver") for _ in range(count)] for count in kinds)
    try:
        oracle = Oracle(peers, plain, seed)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            oracle.step()
        for name, copy in oracle.copies.items():
            for first in range(0, copy.size, MIB):
                oracle.compare(oracle.peers[0], name, first, min(MIB, copy.size - first))
        assert not {kind: n for kind, n in space.check().items() if kind not in ("arrays", "bytes") and n}
    finally:
        for peer in peers + plain:
            peer.stop()
