"""The contract of space/locality/base.py, asked of every implementation; over hosts, of bytes here and there."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Array, Space, Transfer
from openshelf.errors import BadAddress, BadInput, HostLost, NotPermitted, UnknownName
from openshelf.space.copies import copies, ranges_of
from openshelf.space.locality.base import Locality
from openshelf.space.locality.flash import WithFlash
from openshelf.space.locality.hosts import SeveralHosts
from openshelf.space.locality.local import OneHost
from tests.conftest import collect
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster

WAIT = 60.0
UNIT = 64 << 10
FACTS = {"host", "number", "up", "own", "bytes", "free", "round_trip_us", "bandwidth", "misses", "recalls"}


@dataclasses.dataclass
class Shelf:
    """A space, by what it can be opened again, and the host that its arrays live on."""

    space: Space
    name: str
    home: int
    kind: type[Locality]
    flash: bool = False
    lose: Callable[[], None] | None = None  # the host that the arrays live on, where that is another one

    @property
    def locality(self) -> Locality:
        return self.space._locality

    def put(self, values: Any, name: str | None = None) -> Array:
        return self.space.put(name, values, home=self.home)


@contextlib.contextmanager
def _over_hosts(home: int, patch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """This process is on host 1 of two; somebody on host 0 has the space open too."""
    with Cluster(2) as cluster:
        cluster[0].peer().call(worker.enter, cluster[0].url())
        patch.setenv("OPENSHELF_DIR", str(cluster[1].directory))
        patch.setenv("OPENSHELF_HOSTS", str(cluster.file))
        url = cluster[1].url()
        with Space.open(url, contribute=worker.CONTRIBUTE) as space:
            yield Shelf(space, url, home, SeveralHosts, lose=cluster[0].kill if home == 0 else None)
        collect()


@pytest.fixture(params=["one host", "with flash", "over hosts, here", "over hosts, there"])
def shelf(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Shelf]:
    monkeypatch.setenv("OPENSHELF_LINGER", "1")
    if request.param == "one host":
        with Space.create("shelf", "64MiB") as space:
            yield Shelf(space, "shelf", 0, OneHost)
    elif request.param == "with flash":
        with tempfile.TemporaryDirectory(prefix="openshelf-flash-", dir="/dev/shm") as folder:
            with Space.create("shelf", "32MiB", flash=f"{folder}/file:128MiB", durable=True) as space:
                yield Shelf(space, "shelf", 0, WithFlash, flash=True)
            Space.remove("shelf")
    else:
        with _over_hosts(int(request.param == "over hosts, here"), monkeypatch) as made:
            yield made


def noise(nbytes: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def done(transfer: Transfer) -> None:
    assert transfer.wait(WAIT)
    assert transfer.done


def fetched(shelf: Shelf, where: Any, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    out = np.empty(nbytes, np.uint8)
    done(shelf.locality.get(copies(where, out, None, write=True)))
    return out


def test_the_kind_of_space_decides_which_one_it_is(shelf: Shelf) -> None:
    assert type(shelf.locality) is shelf.kind


def test_an_array_is_at_home_on_the_host_that_it_was_made_on(shelf: Shelf) -> None:
    host = shelf.locality.host_of(shelf.home)
    array = shelf.put(noise(100))
    assert shelf.locality.home(array.address) == host
    assert shelf.locality.host_of(host) == host
    assert shelf.locality.together(array.address, array.address + 99)


@pytest.mark.parametrize("unknown", ["no.such.host:1", 99, -1])
def test_an_unknown_host_is_an_error_that_names_it(shelf: Shelf, unknown: str | int) -> None:
    for ask in (shelf.locality.host_of, shelf.locality.on):
        with pytest.raises(UnknownName, match=str(unknown)):
            ask(unknown)


def test_every_host_is_told_of_once_and_one_is_this_one(shelf: Shelf) -> None:
    hosts = shelf.locality.hosts()
    assert [one["number"] for one in hosts] == list(range(len(hosts)))
    assert [one["own"] for one in hosts].count(True) == 1
    for one in hosts:
        assert set(one) >= FACTS
        assert one["up"] is True
        assert 0 < one["free"] <= one["bytes"]
        assert shelf.locality.host_of(one["number"]) == one["host"]
    assert shelf.locality.missing() == []


def test_answers_about_a_range_are_words_of_the_contract(shelf: Shelf) -> None:
    array = shelf.put(noise(3 * UNIT))
    hosts = {one["host"] for one in shelf.locality.hosts()}
    for nbytes in (0, 1, array.nbytes):
        assert shelf.locality.owner(array.address, nbytes) in {*hosts, None}
        assert shelf.locality.state(array.address, nbytes) in ("home", "invalid", "shared", "modified", "mixed")
        assert shelf.locality.tier(array.address, nbytes) in ("dram", "flash", "mixed")


def test_an_address_has_a_segment_and_an_offset_there(shelf: Shelf) -> None:
    array = shelf.put(noise(100))
    segment, offset = shelf.locality.where(array.address)
    assert segment == shelf.home
    assert shelf.locality.where(array.address + 99) == (segment, offset + 99)
    for outside in (0, 1 << 46):
        with pytest.raises(BadAddress):
            shelf.locality.where(outside)


@pytest.mark.parametrize("nbytes", [0, 1, 4097, 3 * UNIT + 5])
def test_bytes_that_were_put_are_got_and_seen(shelf: Shelf, nbytes: int) -> None:
    array, data = shelf.put(np.zeros(nbytes, np.uint8)), noise(nbytes)
    transfer = shelf.locality.put(copies(array, data, None, write=False))
    assert transfer.nbytes == nbytes
    done(transfer)
    assert np.array_equal(fetched(shelf, array, nbytes), data)
    assert np.array_equal(array.numpy(), data)


def test_rows_go_to_and_come_from_many_addresses_at_once(shelf: Shelf) -> None:
    data = noise(50 * 64).reshape(50, 64)
    array = shelf.put(np.zeros((50, 64), np.uint8))
    addresses = [array.address + 64 * row for row in np.random.default_rng(2).permutation(50).tolist()]
    done(shelf.locality.put(copies(addresses, data, None, write=False)))
    out = np.zeros_like(data)
    done(shelf.locality.get(copies(addresses, out, None, write=True)))
    assert np.array_equal(out, data)
    assert np.array_equal(array.numpy()[0], data[addresses.index(array.address)])


def test_an_address_of_no_array_is_refused_and_nothing_is_copied(shelf: Shelf) -> None:
    array = shelf.put(noise(64))
    before, out = array.numpy().copy(), np.zeros((2, 64), np.uint8)
    beyond = [array.address, array.address + (32 << 20)]  # in the space, but nothing is there
    with pytest.raises(BadAddress):
        shelf.locality.get(copies(beyond, out, None, write=True)).wait(WAIT)
    with pytest.raises(BadAddress):
        shelf.locality.put(copies(beyond, out, None, write=False)).wait(WAIT)
    assert np.array_equal(array.numpy(), before)
    assert not out.any()


def test_a_space_that_is_open_for_reading_is_read_and_not_written(shelf: Shelf) -> None:
    data = noise(UNIT)
    address = shelf.put(data, "a").address
    shelf.space.close()
    gc.collect()
    with Space.open(shelf.name, mode="r") as reader:
        again = dataclasses.replace(shelf, space=reader)
        with pytest.raises(NotPermitted):
            again.locality.put(copies(address, np.zeros(UNIT, np.uint8), None, write=False)).wait(WAIT)
        assert np.array_equal(fetched(again, address, UNIT), data)


@pytest.mark.parametrize("write", [False, True])
def test_what_is_prefetched_is_as_it_was_and_in_memory(shelf: Shelf, write: bool) -> None:
    data = noise(3 * UNIT)
    array = shelf.put(data)
    transfer = shelf.locality.prefetch(array.address, array.nbytes, write, 0)
    assert transfer.nbytes == array.nbytes
    done(transfer)
    assert shelf.locality.tier(array.address, array.nbytes) == "dram"
    assert np.array_equal(array.numpy(), data)
    done(shelf.locality.prefetch(array.address, 0, write, 0))


def test_many_ranges_are_prefetched_by_one_transfer(shelf: Shelf) -> None:
    arrays = [shelf.put(noise(size, size)) for size in (1, UNIT, 2 * UNIT + 1)]
    transfer = shelf.locality.prefetch_many(ranges_of(arrays, None), 3)
    assert transfer.nbytes == sum(array.nbytes for array in arrays)
    done(transfer)
    assert all(np.array_equal(array.numpy(), noise(array.nbytes, array.nbytes)) for array in arrays)


def test_bytes_are_demoted_and_come_back_or_the_call_says_why_not(shelf: Shelf) -> None:
    data = noise(UNIT * 4)
    array = shelf.put(data)
    if shelf.flash:
        done(shelf.locality.demote(array.address, array.nbytes, "flash", 0))
        with pytest.raises(BadInput, match="dram"):
            shelf.locality.demote(array.address, array.nbytes, "dram", 0)
    else:
        with pytest.raises(BadInput, match="no flash tier"):
            shelf.locality.demote(array.address, array.nbytes, "flash", 0)
    assert np.array_equal(array.numpy(), data)


def test_pinned_bytes_are_in_memory_until_they_are_released(shelf: Shelf) -> None:
    data = noise(UNIT)
    array = shelf.put(data)
    if shelf.kind is SeveralHosts:
        with pytest.raises(BadInput, match="prefetch"):
            shelf.locality.pin(array.address, array.nbytes, 0)
        return
    with shelf.locality.pin(array.address, array.nbytes, 0) as pinned:
        assert pinned.done
        assert shelf.locality.tier(array.address, array.nbytes) == "dram"
        assert np.array_equal(array.numpy(), data)
    pinned.release()  # a second time: nothing


def test_a_flush_is_done_or_the_call_says_why_not(shelf: Shelf) -> None:
    array = shelf.put(noise(UNIT))
    if shelf.flash:
        done(shelf.locality.flush())
        assert np.array_equal(array.numpy(), noise(UNIT))
    else:
        with pytest.raises(BadInput, match="no flash tier"):
            shelf.locality.flush()


def test_only_a_space_with_several_tiers_describes_them(shelf: Shelf) -> None:
    described = shelf.locality.describe()
    assert bool(described) is shelf.flash
    assert not shelf.flash or described["dram_budget"] == 32 << 20


def test_a_buffer_is_the_memory_itself_and_keeps_it(shelf: Shelf) -> None:
    data = noise(1000)
    array = shelf.put(data)
    buffer, offset = shelf.locality.buffer(array._pin, 100, 50)
    part = np.ndarray(50, np.uint8, buffer, offset)
    array.numpy()[100] = 7
    del array, buffer
    gc.collect()
    assert part[0] == 7
    assert np.array_equal(part[1:], data[101:150])


def test_a_transfer_keeps_the_callers_buffer_until_it_is_done(shelf: Shelf) -> None:
    data = noise(4 << 20)
    array = shelf.put(np.zeros(len(data), np.uint8))
    transfer = shelf.locality.put(copies(array, data.copy(), None, write=False))
    gc.collect()
    done(transfer)
    assert np.array_equal(array.numpy(), data)


def test_bytes_of_a_lost_host_raise_and_the_host_is_missing(shelf: Shelf) -> None:
    if shelf.lose is None:
        pytest.skip("these bytes are on this host")
    array = shelf.put(noise(UNIT))
    shelf.lose()
    with pytest.raises(HostLost):
        shelf.locality.get(copies(array, np.empty(UNIT, np.uint8), None, write=True)).wait(WAIT)
    assert [one["up"] for one in shelf.locality.hosts()] == [False, True]
    assert shelf.locality.missing() == [shelf.locality.host_of(0)]
