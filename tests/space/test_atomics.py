"""Atomic words: every operation, both widths, and waiting for a word across processes."""

from __future__ import annotations

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadAddress, BadInput, Mismatch, OutOfRange
from tests.processes import Peer, State
from tests.space import shelf

RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


@pytest.mark.parametrize("dtype", RANGES)
def test_every_operation_does_what_it_says(space: Space, dtype: str) -> None:
    low, high = RANGES[dtype]
    array = space.zeros("a", 4, dtype)
    word = array.atomic(2)
    assert word.load() == 0
    word.store(high)
    assert array.numpy()[2] == high
    assert word.add(1) == high
    assert word.load() == low  # wraps around
    assert word.exchange(5) == low
    assert word.compare_and_swap(4, 9) == (False, 5)
    assert word.compare_and_swap(5, 9) == (True, 5)
    assert word.load() == 9
    assert array.numpy().tolist() == [0, 0, 9, 0]
    with pytest.raises(BadInput, match=f"does not fit {dtype}"):
        word.store(high + 1)
    with pytest.raises(BadInput, match=f"does not fit {dtype}"):
        word.add(low - 1)


def _add_often(state: State, name: str, times: int) -> None:
    word = state["space"][name].atomic(1)
    for _ in range(times):
        word.add(1)


def _swap_often(state: State, name: str, times: int) -> None:
    word = state["space"][name].atomic(0)
    for _ in range(times):
        seen = word.load()
        while not (got := word.compare_and_swap(seen, seen + 1))[0]:
            seen = got[1]


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_additions_of_several_processes_are_all_counted(space: Space, dtype: str) -> None:
    array = space.zeros("a", 2, dtype)
    with Peer() as one, Peer() as two:
        for peer in (one, two):
            peer.call(shelf.open_space)
        for work in (_add_often, _swap_often):
            for peer in (one, two):
                peer.start(work, "a", 20_000)
            for peer in (one, two):
                peer.finish()
    assert array.numpy().tolist() == [40_000, 40_000]


def _answer(state: State, rounds: int) -> None:
    word = state["space"]["a"].atomic(0)
    for turn in range(rounds):
        while word.load() != 2 * turn + 1:
            word.wait(2 * turn, 60)
        word.store(2 * turn + 2)
        word.wake()


def test_waiter_is_woken_by_another_process(space: Space, peer: Peer) -> None:
    word = space.zeros("a", 1, "uint32").atomic()
    peer.call(shelf.open_space)
    peer.start(_answer, 200)
    for turn in range(200):
        word.store(2 * turn + 1)
        word.wake()
        while word.load() == 2 * turn + 1:
            assert word.wait(2 * turn + 1, 60)
    peer.finish()
    assert word.load() == 400


def test_wait_returns_at_once_if_the_word_differs_and_false_when_time_is_over(space: Space) -> None:
    word = space.zeros("a", 1, "int32").atomic()
    assert word.wait(-1)
    assert not word.wait(0, 0.01)
    assert not word.wait(0, 0)
    assert word.wake() == 0


def test_words_of_wrong_type_place_or_width_are_refused(space: Space) -> None:
    with pytest.raises(Mismatch, match="int32, uint32, int64 and uint64, not float32"):
        space.zeros("f", 4, "float32").atomic()
    with pytest.raises(Mismatch):
        space.put("big", np.zeros(2, ">i4")).atomic()
    array = space.zeros("a", 64, "uint8")
    with pytest.raises(BadAddress, match="aligned word of 8 bytes"):
        space.at(array.address + 4, 2, "int64").atomic()
    with pytest.raises(BadAddress, match="aligned word of 4 bytes"):
        space.at(array.address + 2, 2, "int32").atomic()
    assert space.at(array.address + 4, 2, "int32").atomic(1).load() == 0
    for index in (-1, 8):
        with pytest.raises(OutOfRange, match="out of range"):
            space.at(array.address, 8, "int64").atomic(index)
    with pytest.raises(Mismatch, match="4-byte word"):
        space.zeros("l", 1, "int64").atomic().wait(0)
    with pytest.raises(Mismatch, match="4-byte word"):
        space["l"].atomic().wake()


def test_atomic_keeps_its_memory(space: Space) -> None:
    word = space.full("a", 1000, 7, "int64").atomic(3)
    space.delete("a")
    space.full("b", 1000, 9, "int64")
    assert word.load() == 7
