"""One suite for every membership: a fixed list, etcd, and the virtual store on which the simulation runs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from openshelf.errors import HostLost, NoAgreement, NoRoom, UnknownName
from openshelf.membership import Agreed, Etcd, Fixed, Membership, Owner, Spec
from tests.conformance.virtual_store import VirtualStore
from tests.space.hosts.harness.etcd import Servers

HOSTS = ("10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400")
PLACES = 3
_numbers = itertools.count()
Make = Callable[[], Membership]  # another host's handle of the same membership


def _agreed(make: Callable[[], Agreed]) -> Make:
    make().make(Spec("0a", 1 << 40, 1 << 30, PLACES))
    return make


@pytest.fixture(params=["fixed", "virtual", "etcd"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "fixed":
        yield lambda: Fixed(HOSTS)
    elif request.param == "virtual":
        store = VirtualStore()
        yield _agreed(lambda: Agreed(store, "demo"))
    else:
        servers: Servers = request.getfixturevalue("etcd_servers")
        stores: list[Etcd] = []
        space = f"conformance{next(_numbers)}"

        def connected() -> Agreed:
            stores.append(Etcd(servers.clients))
            return Agreed(stores[-1], space)

        yield _agreed(connected)
        for one in stores:
            one.close()


def test_each_host_gets_a_place_of_its_own_and_keeps_it(make: Make) -> None:
    tickets = [make().join(host, "life") for host in HOSTS]
    assert [ticket.number for ticket in tickets] == [0, 1, 2]
    assert make().join(HOSTS[1], "life").number == 1
    assert make().view().hosts == HOSTS


def test_a_host_without_a_place_cannot_join(make: Make) -> None:
    for host in HOSTS:
        make().join(host, "life")
    with pytest.raises((NoRoom, UnknownName)):
        make().join("10.0.0.4:7400", "life")


def test_members_have_terms_that_rise_with_every_join(make: Make) -> None:
    one = make()
    first, second = one.join(HOSTS[0], "life"), one.join(HOSTS[1], "life")
    again = one.join(HOSTS[0], "life")
    view = one.view()
    assert view.terms[:2] == (again.term, second.term)
    assert not one.agreed or first.term < second.term < again.term <= view.epoch


def test_a_lease_that_is_kept_holds_and_the_list_stays(make: Make) -> None:
    one = make()
    ticket = one.join(HOSTS[0], "life")
    before = one.view()
    assert all(one.lease(ticket) for _ in range(3))
    assert one.view() == before == make().view()


def test_who_leaves_is_a_member_no_more_and_others_stay(make: Make) -> None:
    one = make()
    ticket, stays = one.join(HOSTS[0], "life"), one.join(HOSTS[1], "life")
    one.leave(ticket)
    view = make().view()
    assert view.terms[1] == stays.term
    assert not one.agreed or view.terms[0] == 0


def test_watch_ends_when_its_time_is_over(make: Make) -> None:
    one = make()
    one.join(HOSTS[0], "life")
    known = one.view()
    assert one.watch(known, 0.01) == known


def test_watch_ends_when_a_host_joins(make: Make, request: pytest.FixtureRequest) -> None:
    one = make()
    one.join(HOSTS[0], "life")
    known = one.view()
    if not one.agreed:
        pytest.skip("a fixed list does not change")
    if "virtual" in request.node.name:
        make().join(HOSTS[1], "life")
        seen = one.watch(known, 0)
    else:
        threading.Timer(0.05, lambda: make().join(HOSTS[1], "life")).start()
        seen = one.watch(known, 60)
        while seen == known:  # a hint may come for nothing
            seen = one.watch(known, 60)
    assert seen.hosts[1] == HOSTS[1]
    assert seen.epoch > known.epoch


def test_one_owner_for_a_name_however_many_want_it(make: Make) -> None:
    one, other = make(), make()
    tickets = one.join(HOSTS[0], "a"), one.join(HOSTS[1], "b")
    mine, theirs = Owner(0, "a", 4096, "x"), Owner(1, "b", 8192, "y")
    if not one.agreed:
        with pytest.raises(NoAgreement, match="fixed list"):
            one.cas("weights", None, mine, tickets[0])
        return
    assert one.cas("weights", None, mine, tickets[0]) == mine
    assert other.cas("weights", None, theirs, tickets[1]) == mine
    assert other.cas("weights", mine, theirs, tickets[1]) == theirs
    assert one.cas("weights", mine, None, tickets[0]) == theirs
    assert one.cas("weights", theirs, None, tickets[0]) is None
    assert other.cas("a/b c%\u00e4", None, theirs, tickets[1]) == theirs


def test_a_host_that_was_given_up_cannot_take_a_name(make: Make) -> None:
    one = make()
    old = one.join(HOSTS[0], "a")
    if not one.agreed:
        return
    one.join(HOSTS[0], "a")  # as its next keeper does
    with pytest.raises(HostLost, match="given up"):
        one.cas("weights", None, Owner(0, "a", 4096, "x"), old)


def test_a_member_whose_lease_ends_is_given_up_once_and_joins_again_with_a_larger_term(make: Make) -> None:
    one, other = make(), make()
    if not isinstance(one, Agreed) or not isinstance(other, Agreed):
        return
    first, second = one.join(HOSTS[0], "a"), one.join(HOSTS[1], "b")
    before = one.view()
    one.resign(first)
    assert not one.lease(first)
    seen = one.view()
    assert seen == other.view()
    assert seen.epoch == before.epoch + 1
    assert seen.terms[:2] == (0, second.term)
    again = one.join_again(HOSTS[0], "a")
    assert (again.number, again.term) == (0, seen.epoch + 1)
