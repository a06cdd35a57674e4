"""Arrays of a space larger than memory: bytes change tier, never address, and are right wherever they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import NotPermitted
from tests.processes import Peer, State
from tests.space.tiers.conftest import with_faults, without_faults
from tests.space.tiers.shelves import DRAM, KIB, MIB, UNIT, demoted, keeper, push, tiers, words


def test_bytes_change_tier_and_keep_their_address(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 4 * MIB))
    address = array.address
    assert array.tier == "dram"
    demoted(array)
    assert shelf.where(address).tier == "flash"
    assert array.prefetch().wait()
    assert (array.tier, array.address) == ("dram", address)
    assert np.array_equal(shelf["a"].numpy(), words(1, 1, 4 * MIB))


def test_parts_are_demoted_and_prefetched_alone(shelf: Space) -> None:
    rows = shelf.put("rows", words(1, 1, 32 * UNIT).reshape(32, -1))
    first = -(rows.address // -UNIT) * UNIT
    if first != rows.address:
        pytest.skip("rows are not units where the array begins in the middle of one")
    demoted(rows[10:20])
    assert [rows[at].tier for at in (0, 9, 10, 19, 20, 31)] == ["dram", "dram", "flash", "flash", "dram", "dram"]
    assert rows.tier == "mixed"
    assert rows[12].prefetch().wait()
    assert [rows[at].tier for at in (11, 12, 13)] == ["flash", "dram", "flash"]
    assert np.array_equal(shelf["rows"].numpy().ravel(), words(1, 1, 32 * UNIT))


@with_faults
def test_old_views_read_and_write_through_demotions(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 2 * MIB))
    view, expected = array.numpy(), words(1, 1, 2 * MIB)
    for round_ in range(5):
        demoted(array)
        place = round_ * 9973
        assert view[place] == expected[place]  # in memory again, and clean
        view[place + 1] = expected[place + 1] = round_
        demoted(array)
        view[place + 2] = expected[place + 2] = round_ + 100  # a store is the first touch
        assert np.array_equal(view, expected)


@with_faults
def test_touch_of_one_byte_does_not_bring_the_rest(shelf: Space) -> None:
    array = demoted(shelf.put("a", words(1, 1, 8 * MIB)))
    assert array.numpy()[0] == words(1, 1, 8)[0]
    assert array.tier == "mixed"


@with_faults
def test_tensors_are_views_too(shelf: Space) -> None:
    import torch  # not for every process that other tests start

    array = shelf.put("t", torch.arange(1 << 20, dtype=torch.float32))
    tensor = array.torch()
    demoted(array)
    assert torch.equal(tensor, torch.arange(1 << 20, dtype=torch.float32))
    demoted(array)
    tensor.add_(1)
    demoted(array)
    assert float(tensor.double().sum()) == sum(range(1, (1 << 20) + 1))


@without_faults
def test_without_faults_a_view_holds_its_array_in_dram(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 2 * MIB))
    view = shelf["a"].numpy()
    with pytest.raises(NotPermitted, match="pinned"):
        array.demote().wait()
    push(shelf, 2 * DRAM)
    assert array.tier == "dram"
    assert np.array_equal(view, words(1, 1, 2 * MIB))
    del view
    demoted(array)
    part = array[: UNIT // 8].numpy()
    assert array.tier == "mixed"
    assert np.array_equal(part, words(1, 1, UNIT))


def _open(state: State, name: str, mode: str = "rw") -> str:
    state["space"] = Space.open(name, mode)
    return str(tiers(state["space"])["faults_how"])


def _view(state: State, name: str) -> None:
    state["view"] = state["space"][name].numpy()


def _look(state: State, place: int) -> int:
    return int(state["view"][place])


def _store(state: State, place: int, value: int) -> None:
    state["view"][place] = value


def _drop(state: State) -> None:
    state.pop("view", None)


@with_faults
def test_another_process_reads_and_writes_what_is_on_flash(shelf: Space, peer: Peer, mode: str) -> None:
    array = shelf.put("a", words(1, 1, 2 * MIB))
    assert peer.call(_open, "shelf") == mode
    peer.call(_view, "a")
    view = array.numpy()
    for place in range(0, 200_000, 40_000):
        demoted(array)
        assert peer.call(_look, place) == int(words(1, 1, 2 * MIB)[place])
        demoted(array)
        peer.call(_store, place, place + 5)
        assert view[place] == place + 5
        view[place + 1] = 17
        demoted(array)
        assert peer.call(_look, place + 1) == 17


@with_faults
def test_one_process_without_faults_among_others(shelf: Space, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds stays in dram for all, what it wrote unseen is not lost, and what it let go moves again."""
    array = shelf.put("a", words(1, 1, 2 * MIB))
    demoted(array)
    monkeypatch.setenv("OPENSHELF_FAULTS", "off")
    with Peer() as plain:
        assert plain.call(_open, "shelf") == "none"
        plain.call(_view, "a")
        with pytest.raises(NotPermitted):
            array.demote().wait()
        for version in range(20):
            plain.call(_store, version, version)
            assert array.numpy()[version] == version
        plain.call(_drop)
        demoted(array)
    assert array.numpy()[:20].tolist() == list(range(20))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_process_has_the_same_bytes(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 2 * MIB))
    view = array.numpy()
    for round_ in range(3):
        if shelf.describe()["tiers"]["faults_how"] != "none":
            demoted(array)
        child = os.fork()
        if child == 0:
            good = bool((view[100:] == words(1, 1, 2 * MIB)[100:]).all()) and bool((view[:round_] == 7).all())
            view[round_] = 7
            mine = Space.open("shelf").put(f"child-{round_}", words(2, round_, MIB))
            os._exit(0 if good and mine.tier == "dram" else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert view[round_] == 7
        assert np.array_equal(shelf[f"child-{round_}"].numpy(), words(2, round_, MIB))


@without_faults
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_process_holds_its_views_though_the_parent_lets_go_at_once(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 16 * MIB))
    reading, writing = os.pipe()
    for _ in range(3):
        holder = shelf["a"]
        view = holder.numpy()
        child = os.fork()
        if child == 0:
            os.close(writing)  # if the test ends, so does this
            os.read(reading, 1)
            os._exit(0 if bool((view == words(1, 1, 16 * MIB)).all()) else 1)
        del view, holder
        for _ in range(5):
            try:
                array.demote().wait()
            except NotPermitted:
                break
        push(shelf, DRAM)
        os.write(writing, b"x")
        assert os.waitpid(child, 0)[1] == 0
        demoted(array)


def test_new_array_larger_than_memory_is_zeros(shelf: Space) -> None:
    array = shelf.zeros("big", (3 * DRAM // MIB, MIB // 8), "uint64")
    for row in range(len(array)):
        assert not array[row].numpy().any()
    for row in range(0, len(array), 5):
        array[row].numpy()[:] = words(row, 1, MIB)
    for row in range(len(array)):
        expected = words(row, 1, MIB) if row % 5 == 0 else np.zeros(MIB // 8, np.uint64)
        assert np.array_equal(array[row].numpy(), expected), row
    assert tiers(shelf)["dram_bytes"] <= DRAM


def test_more_than_memory_holds_comes_back_as_it_was(shelf: Space) -> None:
    for number in range(24):
        shelf.put(f"a{number}", words(number, number, 4 * MIB))
    assert tiers(shelf)["dram_bytes"] <= DRAM
    for number in range(24):
        assert np.array_equal(shelf[f"a{number}"].numpy(), words(number, number, 4 * MIB)), number


@pytest.mark.parametrize("nbytes", [MIB, MIB + 12 * KIB, 300 * KIB, 5 * MIB + 4 * KIB])
@pytest.mark.parametrize("leave", ["in dram", "on flash"])
def test_recycled_memory_is_zero_again(shelf: Space, nbytes: int, leave: str) -> None:
    places = set()
    shelf.put("before", words(5, 1, 100 * KIB))  # units are shared with neighbours
    for version in range(4):
        array = shelf.put("old", words(1, version, nbytes))
        places.add(array.address)
        if leave == "on flash":
            demoted(array)
        shelf.delete("old")
        del array
        shelf.describe()  # hands back what was dropped
        fresh = shelf.zeros("new", nbytes // 8, "uint64")
        places.add(fresh.address)
        assert not fresh.numpy().any()
        if leave == "on flash":
            del fresh
            demoted(shelf["new"])
            assert not shelf["new"].numpy().any()
        shelf.delete("new")
    assert len(places) < 8  # memory was used again
    assert np.array_equal(shelf["before"].numpy(), words(5, 1, 100 * KIB))


def test_bytes_by_address_wherever_they_are(shelf: Space) -> None:
    array = shelf.put("a", words(1, 1, 4 * MIB))
    expected, out = words(1, 1, 4 * MIB), np.zeros(4 * MIB // 8, np.uint64)
    for place in (0, UNIT - 512, 3 * UNIT + 8):
        demoted(array)
        data = words(7, place & 0xFFF, 2 * UNIT)
        shelf.put(array.address + place, data).wait()
        expected[place // 8 : place // 8 + data.size] = data
        shelf.get(array.address, out).wait()
        assert np.array_equal(out, expected)
    big = shelf.zeros("big", 2 * DRAM // 8, "uint64")
    shelf.put(big.address, words(2, 2, 2 * DRAM)).wait()
    copy = np.zeros(2 * DRAM // 8, np.uint64)
    shelf.get(big.address, copy).wait()
    assert np.array_equal(copy, words(2, 2, 2 * DRAM))


def test_array_of_another_array_that_is_on_flash(shelf: Space) -> None:
    source = demoted(shelf.put("a", words(1, 1, 2 * MIB)))
    shelf.put("b", source)
    assert np.array_equal(shelf["b"].numpy(), words(1, 1, 2 * MIB))


def _count(state: State, times: int) -> None:
    space = Space.open("shelf")
    counter, lock, barrier = space.counter("counter"), space.lock("lock"), space.barrier("barrier", 2)
    guarded, channel = space["guarded"].numpy(), space.channel("channel", 8, 64)
    barrier.wait(60)
    for number in range(times):
        counter.add()
        with lock:
            guarded[0] += 1
        channel.send(b"%d" % number, 30)


def test_locks_counters_channels_and_small_arrays_while_large_ones_pass(shelf: Space, peer: Peer) -> None:
    shelf.zeros("guarded", 1, "int64")
    for number in range(50):
        shelf.put(f"small-{number}", np.full(40, number))
    shelf.channel("channel", 8, 64)
    peer.start(_count, 300)
    shelf.barrier("barrier", 2).wait(60)
    got: list[int] = []
    lock, channel = shelf.lock("lock"), shelf.channel("channel")
    while len(got) < 300:
        if len(got) % 100 == 0:
            push(shelf, DRAM)
        message = channel.receive(30)
        assert isinstance(message, bytes)
        got.append(int(message))
        with lock:
            shelf["guarded"].numpy()[0] += 1
    peer.finish()
    assert got == list(range(300))
    assert (shelf.counter("counter").value, int(shelf["guarded"].numpy()[0])) == (300, 600)
    for number in range(50):
        assert shelf[f"small-{number}"].numpy().tolist() == [number] * 40


def _read_parts(state: State, name: str) -> list[str]:
    array, wrong = state["space"][name], []
    for at in range(0, array.nbytes // 8, MIB // 8):
        if not np.array_equal(array[at : at + MIB // 8].numpy(), words(1, 1, array.nbytes)[at : at + MIB // 8]):
            wrong.append(f"{name} at {at}")
    return wrong


def _asked(state: State, name: str) -> str:
    array = state["space"][name]
    with array[: UNIT // 8].pin():
        pass
    array.prefetch().wait()
    return str(array.tier)


def test_reader_that_may_not_write_brings_bytes_back(shelf: Space, peer: Peer) -> None:
    array = demoted(shelf.put("a", words(1, 1, 16 * MIB)))
    peer.call(_open, "shelf", "r")
    assert peer.call(_read_parts, "a") == []
    demoted(array)
    assert peer.call(_asked, "a") == "dram"
    shelf.put(array.address + 8, words(3, 3, 8)).wait()
    demoted(array)
    peer.call(_view, "a")
    assert peer.call(_look, 1) == int(words(3, 3, 8)[0])


def _count_up(state: State, name: str, first: int, step: int, rounds: int, by_view: bool) -> None:
    space = Space.open("shelf")
    array = space[name]
    places = np.arange(first, array.nbytes // 8, step)
    view = array.numpy() if by_view else None
    address = array.address
    for number in range(1, rounds + 1):
        if view is not None:
            assert (view[places] == number - 1).all(), "a store was lost"
            view[places] = number
        else:
            out = np.zeros(1, np.uint64)
            for place in places[:40]:
                space.get(address + 8 * int(place), out).wait()
                assert out[0] == number - 1, f"a store was lost: {out[0]} in round {number}"
                space.put(address + 8 * int(place), np.full(1, number, np.uint64)).wait()


def test_no_store_is_lost_while_the_unit_is_demoted_again_and_again(shelf: Space, mode: str) -> None:
    """Two processes write words of their own, all in one unit."""
    array = shelf.zeros("u", UNIT // 8, "uint64")
    rounds = 8 if mode == "none" else 60
    with Peer() as one, Peer() as other:
        for number, process in enumerate((one, other)):
            process.start(_count_up, "u", number, 16, rounds, mode != "none")
        while not (one.pipe.poll(0) and other.pipe.poll(0)):
            try:
                array.demote().wait()
            except NotPermitted:
                assert mode == "none"
        one.finish()
        other.finish()
    counted = array.numpy().reshape(-1, 16)
    used = counted if mode != "none" else counted[:40]
    assert (used[:, :2] == rounds).all()
    assert not counted[:, 2:].any()


@with_faults
def test_views_outlive_the_handle_of_their_space(shelf: Space, tmp_path: Path) -> None:
    array = shelf.put("a", words(1, 1, 2 * MIB))
    view = array.numpy()
    demoted(array)
    other = Space.open("shelf")
    other.close()
    assert np.array_equal(view, words(1, 1, 2 * MIB))
    assert keeper(shelf) > 0
