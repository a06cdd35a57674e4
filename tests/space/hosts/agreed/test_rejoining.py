"""A host that was given up and joins again at once loses nothing, and nobody who uses its bytes is harmed."""

from __future__ import annotations

import os
import signal

from tests.space.hosts.agreed import worker
from tests.space.hosts.harness.agreed import AgreedCluster

ROUNDS = 3


def _join_anew(hosts: AgreedCluster, number: int) -> None:
    """Ends the lease of a host, and waits until that host and the first one know its new term."""
    before = hosts.table(hosts[number]).ticket
    hosts.membership.resign(before)
    while hosts.table(hosts[number]).ticket == before:
        hosts[number].peers[0].call(worker.hosts)
    wanted = hosts.table(hosts[number]).ticket.term
    for host in hosts.hosts[:2]:
        while host.peers[0].call(worker.epoch) < wanted:
            pass


def test_what_a_host_has_stored_elsewhere_stays_when_it_joins_anew(hosts: AgreedCluster) -> None:
    home, other = hosts[0].peer(), hosts[1].peer()
    home.call(worker.join, hosts.url)
    home.call(worker.put, "a", 1)
    other.call(worker.join, hosts.url)
    other.call(worker.hold, "a")
    for value in range(ROUNDS):
        other.call(worker.store, 3, value)  # the only copy of these bytes is on that host now
        _join_anew(hosts, 1)
        assert home.call(worker.read, "a")[3] == value
        assert other.call(worker.read_held)[3] == value


def test_views_of_a_host_that_joins_anew_stay_valid(hosts: AgreedCluster) -> None:
    reader, home = hosts[0].peer(), hosts[1].peer()
    reader.call(worker.join, hosts.url)
    home.call(worker.join, hosts.url)
    for value in range(ROUNDS):
        home.call(worker.put, f"a{value}", value)
        home.call(worker.hold, f"a{value}")
        reader.call(worker.hold, f"a{value}")
        _join_anew(hosts, 1)
        assert reader.call(worker.read_held) == [value] * 8  # the first touch: it waits for the host, and is no SIGBUS
        reader.call(worker.store, 2, 9)
        assert home.call(worker.read_held)[2] == 9


def test_a_touch_while_its_home_is_given_up_waits_until_that_has_joined_anew(hosts: AgreedCluster) -> None:
    reader, home = hosts[0].peer(), hosts[1].peer()
    reader.call(worker.join, hosts.url)
    home.call(worker.join, hosts.url)
    home.call(worker.put, "a", 1)
    reader.call(worker.hold, "a")
    (keeper,) = hosts[1].keepers()
    os.kill(keeper, signal.SIGSTOP)
    try:
        hosts.membership.resign(hosts.table(hosts[1]).ticket)
        epoch = hosts.membership.view().epoch
        while reader.call(worker.epoch) < epoch:
            pass
        reader.start(worker.read_held)
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert reader.finish() == [1] * 8


def test_locks_that_a_host_holds_elsewhere_are_its_own_after_it_joins_anew(hosts: AgreedCluster) -> None:
    home, other = hosts[0].peer(), hosts[1].peer()
    home.call(worker.join, hosts.url)
    home.call(worker.make_lock, "lock")
    other.call(worker.join, hosts.url)
    other.call(worker.take_lock, "lock")
    _join_anew(hosts, 1)
    assert not home.call(worker.try_lock, "lock")
    other.call(worker.drop_lock)
    assert home.call(worker.try_lock, "lock")


def test_a_host_that_leaves_and_joins_with_a_new_part_harms_nobody_who_let_go_of_the_old_one(
    hosts: AgreedCluster,
) -> None:
    stays, comes = hosts[0].peer(), hosts[1].peer()
    stays.call(worker.join, hosts.url)
    for value in range(ROUNDS):
        comes.call(worker.join, hosts.url)
        comes.call(worker.put, "a", value)
        stays.call(worker.hold, "a")
        assert stays.call(worker.read_held) == [value] * 8
        stays.call(worker.store, 1, value)
        assert comes.call(worker.read, "a")[1] == value
        stays.call(worker.let_go)
        comes.call(worker.close)
        comes.call(worker.remove, hosts.url)


def test_what_a_newcomer_publishes_is_found_by_a_host_that_has_not_heard_of_it(hosts: AgreedCluster) -> None:
    old, newcomer = hosts[0].peer(), hosts[1].peer()
    old.call(worker.join, hosts.url)
    (keeper,) = hosts[0].keepers()
    os.kill(keeper, signal.SIGSTOP)
    try:
        newcomer.call(worker.join, hosts.url)
        newcomer.call(worker.put, "a", 1)
        old.start(worker.seen, "a")
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert old.finish() == (True, ["a"], [1] * 8)


def test_a_newcomer_finds_what_is_on_hosts_that_have_not_heard_of_it(hosts: AgreedCluster) -> None:
    old = hosts[0].peer()
    old.call(worker.join, hosts.url)
    for turn, host in enumerate(hosts.hosts[1:], 1):
        old.call(worker.put, "a", turn)
        newcomer = host.peer()
        (keeper,) = hosts[0].keepers()
        os.kill(keeper, signal.SIGSTOP)
        try:
            newcomer.call(worker.join, hosts.url)
            newcomer.start(worker.seen, "a")
        finally:
            os.kill(keeper, signal.SIGCONT)
        assert newcomer.finish() == (True, ["a"], [turn] * 8)
