"""One owner for a name, also when the network splits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import PATIENCE
from tests.space.hosts.agreed import worker
from tests.space.hosts.harness import net
from tests.space.hosts.harness.agreed import AgreedCluster
from tests.space.hosts.harness.etcd import Servers, program


@pytest.fixture
def split(network: net.Network, tmp_path: Path) -> Iterator[AgreedCluster]:
    """Three hosts in namespaces, each with a server of etcd."""
    path, why_not = program()
    if not path:
        pytest.skip(why_not)
    with Servers([2379, 2380] * 3, tmp_path, network) as servers, AgreedCluster(3, servers, network) as made:
        yield made


def test_the_minority_cannot_publish_and_the_majority_can(split: AgreedCluster) -> None:
    peers = [host.peer() for host in split.hosts]
    for number, peer in enumerate(peers):
        assert peer.call(worker.join_when_agreed, split.url, 60 * PATIENCE) == number
    peers[0].call(worker.put, "mine", 1)
    split[0].cut()
    kind, text = peers[0].call(worker.tried, worker.put, "a", 1)
    assert (kind, "no name can be published" in text) == ("NoAgreement", True), text
    peers[1].call(worker.put_when_agreed, "a", 2, 60 * PATIENCE)  # etcd may have to choose a leader first
    assert peers[2].call(worker.read_when_there, "a", 60 * PATIENCE) == [2] * 8
    kind, text = peers[1].call(worker.tried, worker.put, "mine", 2)
    assert (kind, "stays that host's" in text) == ("HostLost", True), text
    split[0].heal()
    kind, _ = peers[0].call(worker.until_agreed, worker.put, ("a", 1, False), 60 * PATIENCE)
    assert kind == "NameTaken"
    for peer in peers:
        assert peer.call(worker.read_when_there, "a", 60 * PATIENCE) == [2] * 8
        assert peer.call(worker.read_when_there, "mine", 60 * PATIENCE) == [1] * 8


def test_of_many_that_publish_one_name_at_once_one_does(hosts: AgreedCluster) -> None:
    peers = [host.peer() for host in hosts.hosts]
    for peer in peers:
        peer.call(worker.join, hosts.url)
    for turn in range(5):
        for number, peer in enumerate(peers):
            peer.start(worker.tried, worker.put, f"a{turn}", number, False)
        kinds = [peer.finish()[0] for peer in peers]
        assert sorted(kinds) == ["", "NameTaken", "NameTaken"]
        winner = kinds.index("")
        assert [peer.call(worker.read, f"a{turn}") for peer in peers] == [[winner] * 8] * 3


def test_a_renamed_array_has_its_new_name_alone_and_the_old_one_is_free(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    one.call(worker.put, "a", 1)
    one.call(worker.put, "b", 2)
    assert one.call(worker.tried, worker.rename, "a", "b")[0] == "NameTaken"
    other.call(worker.rename, "a", "c")
    assert other.call(worker.tried, worker.put, "c", 3, False)[0] == "NameTaken"
    other.call(worker.put, "a", 4, False)
    assert one.call(worker.read, "c") == [1] * 8
    assert one.call(worker.read, "a") == [4] * 8


def test_a_name_is_free_again_when_who_was_to_give_it_by_a_rename_is_killed(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    one.call(worker.put, "a", 1)
    other.call(worker.rename_half, "a", "b")
    assert one.call(worker.tried, worker.put, "b", 2, False)[0] == "NameTaken"  # it may still be done
    other.call(worker.rename_late, "a", "b")
    assert one.call(worker.read, "b") == [1] * 8
    other.call(worker.rename_half, "b", "c")
    other.kill()
    one.call(worker.put, "c", 3, False)
    assert one.call(worker.read, "b") == [1] * 8
    assert one.call(worker.read, "c") == [3] * 8


def test_a_name_is_free_when_its_array_is_deleted_though_somebody_has_a_view_of_that(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    one.call(worker.put, "a", 1)
    other.call(worker.hold, "a")
    assert other.call(worker.read_held) == [1] * 8
    one.call(worker.delete, "a")
    one.call(worker.put, "a", 2, False)
    assert one.call(worker.read, "a") == [2] * 8
    assert other.call(worker.read_held) == [1] * 8


def test_the_name_of_a_publisher_that_was_killed_is_free(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    other.call(worker.claim_only, "a")
    assert one.call(worker.names) == []
    other.kill()
    one.call(worker.put, "a", 1, False)  # it waits until the draft of the dead process is gone
    assert one.call(worker.read, "a") == [1] * 8
