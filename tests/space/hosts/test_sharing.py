"""Two hosts, one address: plain loads and stores, by numpy, torch and the kernel, and what is told about them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer
from tests.space.hosts.harness.worker import UNIT

UNITS = 4


def _make(state: State, name: str, value: int) -> int:
    state["array"] = state["space"].full(name, UNITS * UNIT, value, "uint8")
    state["view"] = state["array"].numpy()
    return int(state["array"].address)


def _hold(state: State, name: str) -> int:
    state["array"] = state["space"][name]
    state["view"] = state["array"].numpy()
    return int(state["array"].address)


def _load(state: State) -> list[int]:
    return [int(value) for value in np.unique(state["view"])]


def _store(state: State, value: int) -> None:
    state["view"][:] = value


def _tell(state: State) -> tuple[str, str | None, str]:
    array = state["array"]
    return array.state, array.owner, array.home


@pytest.fixture(params=["loopback", "namespaces"])
def pair(request: pytest.FixtureRequest) -> tuple[Cluster, NurseryPeer, NurseryPeer]:
    """A process on each of two hosts, and an array of ones that lives on the first."""
    cluster: Cluster = request.getfixturevalue("loopback" if request.param == "loopback" else "two")
    one, two = cluster[0].peer(), cluster[1].peer()
    one.call(worker.enter, cluster[0].url())
    two.call(worker.enter, cluster[1].url())
    address = one.call(_make, "a", 1)
    assert two.call(_hold, "a") == address
    return cluster, one, two


def test_store_on_one_host_is_loaded_on_the_other(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    for value in range(2, 30):
        writer, reader = (one, two) if value % 3 else (two, one)
        writer.call(_store, value)
        assert reader.call(_load) == [value]
        assert writer.call(_load) == [value]


def test_state_and_owner_follow_who_reads_and_writes(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    cluster, one, two = pair
    first, second = (host.address for host in cluster.hosts)
    assert one.call(_tell) == ("home", first, first)
    assert two.call(_tell) == ("invalid", first, first)
    two.call(_load)
    assert two.call(_tell)[0] == "shared"
    assert one.call(_tell)[1:] == (None, first)
    two.call(_store, 5)
    assert two.call(_tell) == ("modified", second, first)
    assert one.call(_tell) == ("invalid", second, first)
    assert one.call(_load) == [5]
    assert one.call(_tell)[1] is None
    one.call(_store, 6)
    assert one.call(_tell) == ("home", first, first)
    assert two.call(_tell) == ("invalid", first, first)


def _prefetch(state: State, write: bool) -> str:
    transfer = state["array"].prefetch(write=write)
    assert transfer.wait(20)
    assert transfer.done
    return str(state["array"].state)


def test_prefetch_brings_it_before_it_is_touched(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    assert two.call(_prefetch, False) == "shared"
    before = two.call(_misses)
    assert two.call(_load) == [1]
    assert two.call(_misses) == before
    assert two.call(_prefetch, True) == "modified"
    two.call(_store, 9)
    assert two.call(_misses) == before or two.call(_tell)[0] == "modified"
    assert one.call(_load) == [9]


def _misses(state: State) -> int:
    return sum(int(host["misses"] or 0) for host in state["space"].hosts())


def test_processes_of_a_host_share_its_copy(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    cluster, one, two = pair
    assert two.call(_load) == [1]
    before = two.call(_misses)
    assert before >= 1
    third = cluster[1].peer()
    third.call(worker.enter, cluster[1].url())
    third.call(_hold, "a")
    assert third.call(_load) == [1]
    assert two.call(_misses) == before  # it was there already
    third.call(_store, 3)
    assert [peer.call(_load) for peer in (one, two, third)] == [[3]] * 3
    one.call(_store, 4)  # dies in both
    assert [peer.call(_load) for peer in (third, two)] == [[4]] * 2


def _write_to_file(state: State, path: str) -> None:
    """The kernel reads the view."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    assert os.write(handle, state["view"]) == UNITS * UNIT
    os.close(handle)


def _read_from_file(state: State, path: str) -> None:
    """The kernel writes the view."""
    with open(path, "rb", buffering=0) as file:
        assert file.readinto(state["view"]) == UNITS * UNIT


def test_system_calls_take_views_of_other_hosts(pair: tuple[Cluster, NurseryPeer, NurseryPeer], tmp_path: Any) -> None:
    _, one, two = pair
    one.call(_store, 33)
    two.call(_write_to_file, str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == bytes([33]) * (UNITS * UNIT)
    (tmp_path / "in").write_bytes(bytes([44]) * (UNITS * UNIT))
    two.call(_read_from_file, str(tmp_path / "in"))
    assert one.call(_load) == [44]


def _add_by_torch(state: State) -> float:
    torch = pytest.importorskip("torch")
    tensor = state["array"].torch()
    tensor += 1
    return float(tensor.to(torch.float64).mean())


def test_torch_loads_and_stores_bytes_of_other_hosts(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    assert two.call(_add_by_torch) == 2.0
    assert one.call(_add_by_torch) == 3.0
    assert two.call(_load) == [3]


def _touch_with_threads(state: State) -> list[int]:
    """Several threads fault at once, on the same unit and on different ones."""
    view, found = state["view"], []

    def look(start: int) -> None:
        for unit in range(UNITS):
            found.append(int(view[(start + unit) % UNITS * UNIT]))

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_threads_that_fault_at_once_all_go_on(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    for value in range(2, 12):
        one.call(_store, value)
        assert two.call(_touch_with_threads) == [value] * (8 * UNITS)


def _read_only(state: State) -> tuple[bool, int]:
    view = state["array"].read_only().numpy()
    return bool(view.flags.writeable), int(view[-1])


def test_read_only_arrays_are_shared_by_all(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    assert one.call(_read_only) == (False, 1)
    assert two.call(_read_only) == (False, 1)
    assert two.call(_read_only) == (False, 1)


def _get_and_put(state: State) -> None:
    """Whole, in part, scattered, and several under way at once."""
    space, array = state["space"], state["array"]
    whole = np.empty(UNITS * UNIT, "uint8")
    assert space.get(array, whole).wait(20)
    assert (whole == 1).all()
    transfers = [space.put(array.address + 4096 * n, np.full(4096, n % 16, "uint8")) for n in range(4 * 16)]
    assert all(transfer.wait(20) for transfer in transfers)
    rows = np.empty((16, 100), "uint8")
    places = [array.address + 4096 * n + 50 for n in reversed(range(16))]
    assert space.get(places, rows).wait(20)
    assert rows.tolist() == [[n] * 100 for n in reversed(range(16))]
    assert space.put(places, rows[::-1].copy()).wait(20)
    assert (array.numpy()[50:150] == 15).all()

    async def both() -> None:
        a, b = np.empty(100, "uint8"), np.empty(100, "uint8")
        await asyncio.gather(_finish(space.get(places[0], a)), _finish(space.get(places[1], b)))
        assert (int(a[0]), int(b[0])) == (0, 1)

    asyncio.run(both())


async def _finish(transfer: Any) -> None:
    await transfer


def test_bytes_are_got_and_put_without_faults(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    two.call(_get_and_put)
    assert one.call(_load) == list(range(16))


def test_names_are_visible_on_all_hosts(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    two.call(_make, "b", 7)
    assert one.call(_names) == two.call(_names) == ["a", "b"]
    assert one.call(_hold, "b") == two.call(_hold, "b")
    assert one.call(_load) == [7]


def _names(state: State) -> list[str]:
    return list(state["space"])


def test_small_units_are_kept_apart(loopback: Cluster) -> None:
    one, two = (host.peer() for host in loopback.hosts)
    one.call(worker.enter, loopback[0].url(), worker.CONTRIBUTE, "4KiB")
    two.call(worker.enter, loopback[1].url(), worker.CONTRIBUTE, "4KiB")
    one.call(_make, "a", 1)
    two.call(_hold, "a")
    two.call(_store_at, 0, 5)
    assert two.call(_state_of, 0, 4096) == "modified"
    assert two.call(_state_of, 4096, 8192) == "invalid"
    assert one.call(_load) == [1, 5]


def _store_at(state: State, index: int, value: int) -> None:
    state["view"][index] = value


def _state_of(state: State, first: int, last: int) -> str:
    return str(state["array"][first:last].state)


def test_idle_hosts_stay_together(two: Cluster) -> None:
    """Longer than it takes to be given up."""
    one, other = (host.peer() for host in two.hosts)
    one.call(worker.enter, two[0].url())
    other.call(worker.enter, two[1].url())
    one.call(_make, "a", 1)
    time.sleep(4.5)
    other.call(_hold, "a")
    assert other.call(_load) == [1]
    assert other.call(_up) == [True, True]


def _up(state: State) -> list[bool]:
    return [host["up"] for host in state["space"].hosts()]
