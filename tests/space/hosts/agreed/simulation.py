"""Hosts, their network, etcd and time as one process, driven by a seed, in the manner of FoundationDB.

The code of membership and of names is the real one: Agent, Agreed, AgreedNames and the native Roster. Everything below
it is virtual: the store (with leases that end by the virtual clock), calls between hosts, memory of homes. Only one
actor runs at a time. At every call of the store and every step of a message, the seed decides who goes on, and whether
the message or its answer is lost. The same seed gives the same history.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from openshelf import _core
from openshelf.errors import BadAddress, HostLost, NameTaken, NoAgreement, OpenshelfError
from openshelf.membership import LEASE_S, Agent, Agreed, Spec, Table, View
from openshelf.membership.store import Is, Pair
from openshelf.space.hosts.agreed_names import AgreedNames
from tests.conformance.virtual_store import VirtualStore

HOSTS, NAMES, REALM = 4, 3, 7
ROOM = 1 << 20  # addresses of a host
SECONDS = 40.0  # of virtual time with faults
HEALED = 25.0  # and without, at the end of which all hosts must be members again


class Violation(AssertionError):
    """What must never happen has happened; the text says what."""


class _Over(BaseException):
    """Ends an actor at the end of a run."""


class Scheduler:
    """Actors are threads of which one runs at a time; the seed says which one is next, and what time it is then."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = random.Random(seed), 0.0
        self._wake: dict[threading.Semaphore, float] = {}
        self._main = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._over = False
        self._own = threading.local()

    def start(self, run: Callable[[], None]) -> None:
        turn = threading.Semaphore(0)

        def body() -> None:
            self._own.turn = turn
            turn.acquire()
            try:
                if not self._over:
                    run()
            except _Over:
                pass
            except BaseException as error:
                self._error = self._error or error
            del self._wake[turn]
            self._main.release()

        self._wake[turn] = 0.0
        self._threads.append(threading.Thread(target=body, daemon=True))
        self._threads[-1].start()

    def sleep(self, seconds: float) -> None:
        """Called by an actor: the others go on meanwhile."""
        turn = self._own.turn
        self._wake[turn] = self.now + seconds
        self._main.release()
        turn.acquire()
        if self._over:
            raise _Over

    def step(self) -> None:
        """A point at which others may come between."""
        self.sleep(self.random.choice((0.0, 0.0, 0.001, 0.01)))

    def run(self, until: float, each: Callable[[float], None]) -> None:
        """Runs actors until a time; `each` hears how far the clock was turned."""
        while not self._error:
            soonest = min(self._wake.values())
            if soonest > until:
                return
            passed = max(0.0, soonest - self.now)
            self.now = max(self.now, soonest)
            each(passed)
            ready = [turn for turn, at in self._wake.items() if at <= self.now]
            self._let(ready[self.random.randrange(len(ready))])
        raise self._error

    def end(self) -> None:
        self._over = True
        while self._wake:
            self._let(next(iter(self._wake)))

    def _let(self, turn: threading.Semaphore) -> None:
        turn.release()
        self._main.acquire()


class Line:
    """A host's way to the store: each call may be lost, before or after it was done."""

    def __init__(self, world: World, host: int) -> None:
        self._world, self._host = world, host

    def _through(self, call: Callable[[], Any]) -> Any:
        world = self._world
        world.actors.step()
        if world.lost(self._host, STORE):
            world.actors.sleep(0.5)
            raise NoAgreement("the request was lost")
        answer = call()
        world.actors.step()
        if world.lost(STORE, self._host):
            world.actors.sleep(0.5)
            raise NoAgreement("the answer was lost")
        return answer

    def read(self, prefixes: Sequence[str]) -> tuple[int, dict[str, Pair]]:
        answer: tuple[int, dict[str, Pair]] = self._through(lambda: self._world.store.read(prefixes))
        return answer

    def change(self, conditions: Sequence[Is], put: Mapping[str, tuple[str, int]], delete: Sequence[str] = ()) -> bool:
        return bool(self._through(lambda: self._world.change(conditions, put, delete)))

    def grant(self, seconds: int) -> int:
        return int(self._through(lambda: self._world.store.grant(seconds)))

    def renew(self, lease: int) -> bool:
        return bool(self._through(lambda: self._world.store.renew(lease)))

    def revoke(self, lease: int) -> None:
        self._through(lambda: self._world.store.revoke(lease))

    def wait(self, prefix: str, revision: int, timeout_s: float) -> bool:
        self._world.actors.sleep(self._world.actors.random.uniform(0.05, timeout_s))  # news may be early or late
        return True


STORE = -1


@dataclasses.dataclass
class Array:
    """An array at a home, as far as names need one."""

    address: int
    name: str
    state: int
    kind: int = 0


class Home:
    """The memory of a host, and what its keeper lets others do there."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number
        self.roster = _core.Roster([""] * HOSTS, REALM)
        self.floor = 0  # the newest epoch that a call which was accepted here went by
        self.arrays: dict[int, Array] = {}
        self._next = number * ROOM + 4096

    def accept(self, caller: int, term: int, epoch: int) -> None:
        """As a session of the keeper does before a call (native/rpc/serve.cpp); HostLost if it refuses."""
        faults = self._world.planted
        if self.roster.epoch < epoch and "old epoch" not in faults:
            raise HostLost("it has not heard of that list")
        if not self.roster.admits(caller, term) and "no fencing" not in faults:
            raise HostLost("given up")
        self.floor = max(self.floor, epoch, self.roster.epoch)
        known = self._world.views[self.floor].terms[caller]
        if known != term:
            raise Violation(
                f"host {self._number} lets host {caller} write under term {term}; at epoch {self.floor} it has {known}"
            )

    def draft(self, name: str) -> Array:
        self._next += 64
        made = self.arrays[self._next] = Array(self._next, name, _core.State.DRAFT)
        return made

    # What AgreedNames asks of a part

    def at(self, address: int) -> Array:
        if address not in self.arrays:
            raise BadAddress(f"nothing is at {address:#x}")
        return self.arrays[address]

    def collect(self) -> None:
        """Drafts of dead processes are taken away when these die."""

    def publish(self, array: Array, replace: bool) -> None:
        array.state = _core.State.LIVE
        self._world.check_names()

    def drop(self, array: Array) -> None:
        self.arrays.pop(array.address, None)


class Host:
    """One host: its keeper's agent, and a process that writes to other homes and publishes names."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.address = world, number, f"10.0.0.{number}:7400"
        self.home = Home(world, number)
        self.life = f"life{number}"
        self.table: Table | None = None  # the file, which outlives the keeper
        self.stopped_until = 0.0
        self.membership = Agreed(Line(world, number), "demo")
        clock = SimpleNamespace(monotonic=lambda: world.actors.now, sleep=world.actors.sleep)
        self.names = AgreedNames(number, self.life, Agreed(Line(world, number), "demo"), clock)

    # The keeper

    def keeper(self) -> None:
        while self.table is None:
            try:
                ticket = self.membership.join(self.address, self.life)
                self.follow(Table(self.membership.view(), ticket))
            except OpenshelfError:
                self.world.actors.sleep(0.5)
        agent = Agent(self.membership, self.address, self.table, self.follow, lambda text: None)
        while True:
            if self.world.actors.random.random() < 0.02:  # killed: the next one begins with the file
                agent = Agent(self.membership, self.address, self.table, self.follow, lambda text: None)
            agent.step()
            agent.wait(LEASE_S / 3)
            while self.world.actors.now < self.stopped_until:  # SIGSTOP
                self.world.actors.sleep(self.stopped_until - self.world.actors.now + 0.001)

    def follow(self, table: Table) -> None:
        self.table = table
        self.world.see(table.view)
        self.home.roster.change(list(table.view.hosts), list(table.view.terms), table.view.epoch)

    # A process

    def process(self) -> None:
        actors = self.world.actors
        while True:
            actors.sleep(actors.random.uniform(0.01, 0.6))
            if self.table is None:
                continue
            try:
                if actors.random.random() < 0.5:
                    self.write(actors.random.randrange(HOSTS))
                else:
                    self.publish(f"name{actors.random.randrange(NAMES)}")
            except (HostLost, NoAgreement, NameTaken):
                continue

    def write(self, home: int) -> None:
        assert self.table is not None
        term, epoch = self.table.ticket.term, self.table.view.epoch
        self.world.call(self.number, home, lambda: self.world.hosts[home].home.accept(self.number, term, epoch))

    def publish(self, name: str) -> None:
        array = self.home.draft(name)
        try:
            self.names.publish(self._parts(), array, name, False)  # type: ignore[arg-type]
            self.world.published += 1
        except BaseException:
            if array.state == _core.State.DRAFT:  # the process lets go of it
                self.home.drop(array)
            raise
        self.world.actors.sleep(self.world.actors.random.uniform(0, 3))
        self.home.drop(array)
        self.names.forget(self._parts(), name)

    def _parts(self) -> Any:
        assert self.table is not None
        table = self.table
        return SimpleNamespace(
            attachment=SimpleNamespace(term=table.ticket.term),
            hosts=table.view.hosts,
            number_of=lambda address: address // ROOM,
            native_of=lambda number: _Far(self.world, self.number, number),
            elsewhere=lambda name, home: [],
            drop=lambda name, others: None,
        )


class _Far:
    """The part of a host, as another host calls it."""

    def __init__(self, world: World, caller: int, home: int) -> None:
        self._world, self._caller, self._home = world, caller, home

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            home = self._world.hosts[self._home].home
            if self._caller == self._home:
                self._world.actors.step()
                return getattr(home, name)(*arguments)
            try:
                return self._world.call(self._caller, self._home, lambda: getattr(home, name)(*arguments))
            except HostLost:
                if "names of lost hosts" in self._world.planted and name == "at":
                    raise BadAddress("taken for gone") from None
                raise

        return called


class World:
    """Everything that one seed makes."""

    def __init__(self, seed: int, planted: frozenset[str] = frozenset()) -> None:
        self.actors, self.store, self.planted = Scheduler(seed), VirtualStore(), planted
        self.views: dict[int, View] = {}  # by epoch: all hosts must see the same
        self.published = 0
        self._cut: set[tuple[int, int]] = set()
        self._faults = True
        Agreed(self.store, "demo").make(Spec("07", 1 << 40, 1 << 35, HOSTS))
        self.hosts = [Host(self, number) for number in range(HOSTS)]
        for host in self.hosts:
            self.actors.start(host.keeper)
            self.actors.start(host.process)
        self.actors.start(self._fate)

    def run(self) -> None:
        """Raises Violation, with the seed's history up to there."""
        try:
            self.actors.run(SECONDS, self.store.turn)
            self._faults = False
            self._cut.clear()
            self.actors.run(SECONDS + HEALED, self.store.turn)
            view = Agreed(self.store, "demo").view()
            if not all(view.terms):
                raise Violation(f"{HEALED} s after the last fault some hosts are no members: {view}")
        finally:
            self.actors.end()

    def see(self, view: View) -> None:
        if self.views.setdefault(view.epoch, view) != view:
            raise Violation(f"two lists of one epoch: {view} and {self.views[view.epoch]}")
        if len({host for host in view.hosts if host}) != len([host for host in view.hosts if host]):
            raise Violation(f"one host has two places: {view}")

    def change(self, conditions: Sequence[Is], put: Mapping[str, tuple[str, int]], delete: Sequence[str]) -> bool:
        if "epoch not raised" in self.planted:
            put = {key: pair for key, pair in put.items() if not key.endswith("/epoch") or "/members/" in str(put)}
        done = self.store.change(conditions, put, delete)
        if done and any("/segments/" in key for key in put):
            after = Agreed(self.store, "demo")._state()
            self.see(after.view(HOSTS))
        return done

    def check_names(self) -> None:
        live = [one for host in self.hosts for one in host.home.arrays.values() if one.state == _core.State.LIVE]
        names = [one.name for one in live]
        if len(set(names)) != len(names):
            raise Violation(f"a name has two owners: {live}")

    def lost(self, start: int, end: int) -> bool:
        """Whether a message is."""
        return (start, end) in self._cut or (self._faults and self.actors.random.random() < 0.01)

    def call(self, caller: int, home: int, done: Callable[[], Any]) -> Any:
        """A call from one host to another."""
        self.actors.step()
        if self.actors.random.random() < 0.1:
            self.actors.sleep(self.actors.random.uniform(0, 3 * LEASE_S))  # it is long on its way: stopped, or resent
        if self.lost(caller, home):
            raise HostLost("the call was lost")
        answer = done()
        self.actors.step()
        if self.lost(home, caller):
            raise HostLost("the answer was lost")
        return answer

    def _fate(self) -> None:
        """Cuts of every kind, also one-way ones, and keepers that are stopped."""
        draw = self.actors.random
        while True:
            self.actors.sleep(draw.uniform(0.5, 4))
            if not self._faults:
                continue
            host = draw.randrange(HOSTS)
            others = [STORE, *(number for number in range(HOSTS) if number != host)]
            what = draw.randrange(5)
            if what == 0:
                self._cut.clear()
            elif what == 1:
                self._cut |= {(host, STORE), (STORE, host)}
            elif what == 2:
                self._cut |= {pair for other in others for pair in ((host, other), (other, host))}
            elif what == 3:
                self._cut.add(draw.choice([(host, other) for other in others] + [(other, host) for other in others]))
            else:
                self.hosts[host].stopped_until = self.actors.now + draw.uniform(0, 3 * LEASE_S)
