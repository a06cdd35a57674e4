"""Named arrays of a space with replicas outlive a lost host: what was acknowledged is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from openshelf.membership import Copied, Etcd
from tests.processes import PATIENCE
from tests.space.hosts.agreed import worker
from tests.space.hosts.agreed.replica_simulation import World
from tests.space.hosts.agreed.seeds import finds, run_all
from tests.space.hosts.harness import net
from tests.space.hosts.harness.agreed import AgreedCluster
from tests.space.hosts.harness.etcd import Servers, program

SOAK = bool(os.environ.get("OPENSHELF_SOAK"))
SEEDS = int(os.environ.get("OPENSHELF_TEST_SEEDS") or (2_000 if SOAK else 8))
MOST = 40  # seeds in which a planted fault must have been found


def test_no_seed_finds_an_acknowledged_write_that_is_lost() -> None:
    acknowledged = deaths = 0
    for world in run_all(World, SEEDS):
        acknowledged, deaths = acknowledged + world.acknowledged, deaths + world.deaths
    assert acknowledged > 20 * SEEDS
    assert deaths > SEEDS


@pytest.mark.parametrize("fault", ["no fencing", "lost replica", "old revision"])
def test_some_seed_finds_each_planted_fault(fault: str) -> None:
    assert any(finds(World(seed, frozenset([fault]))) for seed in range(MOST))


@pytest.fixture
def three(hosts: AgreedCluster) -> AgreedCluster:
    """All hosts have joined a space with two copies of everything; each has a process."""
    for number, host in enumerate(hosts.hosts):
        assert host.peer().call(worker.join_replicated, hosts.url) == number
    return hosts


def _homes(hosts: AgreedCluster, name: str) -> list[int]:
    """The hosts that have a copy and are there, that which is used first."""
    membership = Copied(Etcd(hosts.servers.clients), hosts.space)
    found = membership.found(name)
    assert found.kept is not None
    return [copy.number for copy in found.kept.copies if found.there(copy)]


def _await_copies(hosts: AgreedCluster, names: list[str]) -> None:
    deadline = time.monotonic() + 60 * PATIENCE
    while not all(len(_homes(hosts, name)) == 2 for name in names):
        assert time.monotonic() < deadline, hosts.keeper_texts()
        time.sleep(0.05)


def test_what_was_acknowledged_outlives_one_host_after_the_other(three: AgreedCluster) -> None:
    first, second, third = (host.peers[0] for host in three.hosts)
    first.call(worker.put, "a", 1)
    first.call(worker.put, "a", 2)
    second.call(worker.put, "b", 3)
    first.call(worker.put, "gone", 4)
    third.call(worker.delete, "gone")
    first.call(worker.put, "f", 5)
    third.call(worker.hold, "f")
    third.call(worker.store, 3, 6)  # on another host than the array's home
    third.call(worker.flush)
    assert third.call(worker.seen, "a") == (True, ["a", "b", "f"], [2] * 8)
    three[0].kill()
    for peer in (second, third):
        assert peer.call(worker.seen, "a") == (True, ["a", "b", "f"], [2] * 8)
        assert peer.call(worker.read_when_there, "b", 60 * PATIENCE) == [3] * 8
        assert peer.call(worker.read_fresh, "f") == [5, 5, 5, 6, 5, 5, 5, 5]
    third.call(worker.put, "a", 7)
    assert second.call(worker.read, "a") == [7] * 8
    assert second.call(worker.tried, worker.put, "a", 8, False)[0] == "NameTaken"
    _await_copies(three, ["a", "b", "f"])  # on the two that are left
    back = three[0].peer()
    assert back.call(worker.join_replicated, three.url) == 0  # with nothing
    three[1].kill()
    for peer in (back, third):
        assert peer.call(worker.seen, "a") == (True, ["a", "b", "f"], [7] * 8)
        assert peer.call(worker.read_when_there, "b", 60 * PATIENCE) == [3] * 8
        assert peer.call(worker.read_when_there, "f", 60 * PATIENCE) == [5, 5, 5, 6, 5, 5, 5, 5]
    _await_copies(three, ["a", "b", "f"])


def test_writers_lose_nothing_that_was_acknowledged_when_a_host_dies_under_load(three: AgreedCluster) -> None:
    peers = [host.peers[0] for host in three.hosts]
    for turn in range(20 if SOAK else 1):
        for number, peer in enumerate(peers):
            peer.start(worker.count_up, f"n{number}", 6.0)
        time.sleep(1)
        killed = turn % 3
        three[killed].kill()
        left = [number for number in range(3) if number != killed]
        done = {number: peers[number].finish() for number in left}
        for number in left:
            for reader in left:
                assert peers[reader].call(worker.read, f"n{number}")[0] >= done[number] > 0
        names = [f"n{number}" for number in left]
        _await_copies(three, names)
        peers[killed] = three[killed].peer()
        assert peers[killed].call(worker.join_replicated, three.url) == killed


def test_a_killed_keeper_and_a_killed_publisher_leave_all_as_it_was(three: AgreedCluster) -> None:
    first, second, third = (host.peers[0] for host in three.hosts)
    kind, text = second.call(worker.tried, worker.join_replicated, three.url, 3)
    assert (kind, "was made with replicas=2, not 3" in text) == ("Mismatch", True), text
    first.call(worker.put, "a", 1)
    for kind, text in first.call(worker.refused, "a"):  # only one host would have it
        assert (kind, "replicas" in text) == ("BadInput", True), text
    homes = _homes(three, "a")
    assert three[0].kill_keeper() == 1
    assert second.call(worker.read_when_there, "a", 30 * PATIENCE) == [1] * 8
    assert _homes(three, "a") == homes
    third.call(worker.copies_only, "a", 9)  # all of a publication but its commitment
    third.kill()
    assert second.call(worker.read, "a") == [1] * 8
    second.call(worker.forget_making)  # as when the lease of what the dead one announced has ended
    for peer in (first, second):
        peer.call(worker.mend)
    third = three[2].peer()
    third.call(worker.join_replicated, three.url)
    third.call(worker.mend)
    assert sorted(number for peer in (first, second, third) for number in peer.call(worker.hidden)) == sorted(homes)
    three[1].kill()
    three[2].kill()
    kind, text = first.call(worker.until_alone, "b", 30 * PATIENCE)
    assert (kind, "needs 2 hosts" in text) == ("NoRoom", True), text
    assert first.call(worker.read, "a") == [1] * 8


def test_a_home_that_is_cut_off_shows_nobody_an_old_array(network: net.Network, tmp_path: Path) -> None:
    path, why_not = program()
    if not path:
        pytest.skip(why_not)
    with Servers([2379, 2380] * 3, tmp_path, network) as servers, AgreedCluster(3, servers, network) as split:
        peers = [host.peer() for host in split.hosts]
        for peer in peers:
            peer.call(worker.until_agreed, worker.join_replicated, (split.url,), 60 * PATIENCE)
        peers[0].call(worker.put, "a", 1)
        peers[0].call(worker.hold, "a")
        split[0].cut()
        peers[0].call(worker.store, 0, 2)  # not flushed
        assert peers[0].call(worker.tried, worker.read, "a")[0] == "NoAgreement"
        kind, _ = peers[1].call(worker.until_agreed, worker.read, ("a",), 60 * PATIENCE)
        assert not kind
        peers[1].call(worker.put_when_agreed, "a", 3, 60 * PATIENCE)
        split[0].heal()
        kind, text = peers[0].call(worker.until_agreed, worker.flush, (), 60 * PATIENCE)
        assert (kind, "another array by now" in text) == ("Closed", True), text
        assert [peer.call(worker.read_when_there, "a", 60 * PATIENCE) for peer in peers] == [[3] * 8] * 3
