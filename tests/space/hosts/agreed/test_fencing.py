"""A host that the others gave up can change nothing until it has joined again; without etcd all goes on as it is."""

from __future__ import annotations

import os
import signal

from tests.processes import PATIENCE
from tests.space.hosts.agreed import worker
from tests.space.hosts.harness.agreed import AgreedCluster


def _await_terms(hosts: AgreedCluster, number: int, wanted: int) -> None:
    """Until the keeper of the first host goes by a list with this term of a host."""
    peer = hosts[0].peers[0]
    while hosts.table(hosts[0]).view.terms[number] != wanted:
        peer.call(worker.hosts)


def test_a_host_that_was_given_up_cannot_write(hosts: AgreedCluster) -> None:
    home, other = hosts[0].peer(), hosts[1].peer()
    home.call(worker.join, hosts.url)
    address = home.call(worker.put, "a", 1)
    other.call(worker.join, hosts.url)
    other.call(worker.hold, "a")
    other.call(worker.write_at, address, 2)
    (keeper,) = hosts[1].keepers()
    ticket = hosts.table(hosts[1]).ticket
    os.kill(keeper, signal.SIGSTOP)
    try:
        hosts.membership.resign(ticket)  # as if the lease had ended: the network between it and etcd is cut, say
        hosts.membership.view()
        _await_terms(hosts, 1, 0)
        kind, text = other.call(worker.tried, worker.write_at, address, 3)
        assert (kind, "given the caller up" in text) == ("HostLost", True), text
        kind, text = other.call(worker.tried, worker.put, "b", 3)
        assert (kind, "given up" in text) == ("HostLost", True), text
        assert home.call(worker.read_at, address) == 2
    finally:
        os.kill(keeper, signal.SIGCONT)
    other.call(worker.write_when_back, address, 4, 30 * PATIENCE)
    assert home.call(worker.read_at, address) == 4
    assert other.call(worker.term) > ticket.term


def test_what_a_host_holds_elsewhere_is_dropped_when_it_does_not_come_back(hosts: AgreedCluster) -> None:
    home, other = hosts[0].peer(), hosts[1].peer()
    home.call(worker.join, hosts.url)
    home.call(worker.put, "a", 1)
    home.call(worker.make_lock, "lock")
    other.call(worker.join, hosts.url)
    other.call(worker.hold, "a")
    other.call(worker.take_lock, "lock")
    (keeper,) = hosts[1].keepers()
    os.kill(keeper, signal.SIGSTOP)
    try:
        hosts.membership.resign(hosts.table(hosts[1]).ticket)
        assert home.call(worker.try_lock, "lock", 60 * PATIENCE)  # it waits until the host has let go of it
    finally:
        os.kill(keeper, signal.SIGCONT)
    kind, text = other.call(worker.until_back, worker.look_again, 60 * PATIENCE)
    assert (kind, "let go of what this process held" in text) == ("HostLost", True), text
    assert other.call(worker.read_fresh, "a") == [1] * 8


def test_without_etcd_hosts_serve_on_and_with_it_again_nothing_is_lost(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    address = one.call(worker.put, "a", 1)
    other.call(worker.join, hosts.url)
    other.call(worker.put, "b", 2)
    before = hosts.membership.view()
    servers = hosts.servers
    for number in range(servers.COUNT):
        servers.kill(number)
    try:
        other.call(worker.write_at, address, 5)
        assert one.call(worker.read, "a") == [5] * 8
        assert one.call(worker.read, "b") == [2] * 8
        kind, text = one.call(worker.tried, worker.put, "c", 3)
        assert (kind, "no name can be published" in text) == ("NoAgreement", True), text
        kind, text = one.call(worker.tried, worker.read, "nothing")
        assert (kind, "etcd at" in text) == ("UnknownName", True), text
        assert hosts[2].peer().call(worker.tried, worker.join, hosts.url)[0] == "NoAgreement"
        assert not hosts.part(hosts[2]).exists()
        assert hosts[0].kill_keeper() == 1  # the next one goes on with the list and the term of the last
        other.call(worker.write_when_back, address, 6, 30 * PATIENCE)
        another = hosts[0].peer()  # a host that has its part needs no etcd to open it
        assert another.call(worker.join, hosts.url) == 0
        assert another.call(worker.read, "b") == [2] * 8
        one.call(worker.delete, "a")
    finally:
        for number in range(servers.COUNT):
            servers.start(number)
        servers.await_majority()
    one.call(worker.put_when_agreed, "a", 7, 30 * PATIENCE)
    assert other.call(worker.read, "a") == [7] * 8
    assert one.call(worker.read, "b") == [2] * 8
    assert hosts[2].peer().call(worker.join, hosts.url) == 2
    after = hosts.membership.view()
    assert after.hosts[:2] == before.hosts[:2]


def test_one_server_of_etcd_less_changes_nothing(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    hosts.servers.kill(0)
    try:
        one.call(worker.put_when_agreed, "a", 1, 30 * PATIENCE)  # the leader may have been that one
        assert other.call(worker.read, "a") == [1] * 8
        assert hosts[2].peer().call(worker.join, hosts.url) == 2
    finally:
        hosts.servers.start(0)


def test_one_server_of_etcd_that_is_stopped_changes_nothing(hosts: AgreedCluster) -> None:
    one, other = hosts[0].peer(), hosts[1].peer()
    one.call(worker.join, hosts.url)
    other.call(worker.join, hosts.url)
    hosts.servers.signal(0, signal.SIGSTOP)  # it takes connections, and does not answer
    try:
        one.call(worker.put_when_agreed, "a", 1, 30 * PATIENCE)
        assert other.call(worker.read, "a") == [1] * 8
        assert hosts[2].peer().call(worker.join_when_agreed, hosts.url, 60 * PATIENCE) == 2
    finally:
        hosts.servers.signal(0, signal.SIGCONT)
        hosts.servers.await_majority()
