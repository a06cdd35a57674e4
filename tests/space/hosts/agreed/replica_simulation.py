"""Names with copies under random faults in virtual time: simulation.py's scheduler and store, and hosts that die.

The code is the real one: Agent, Copied, KeptNames. Memory of hosts, calls between them and the way to the store are
virtual. A host that dies loses its memory and comes back with another part; a second one dies only when everything has
its copies again. Every read is checked against all that was acknowledged before it began.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from openshelf import _core
from openshelf.errors import Closed, HostLost, NameTaken, NoAgreement, NoRoom, OpenshelfError, UnknownName
from openshelf.membership import LEASE_S, Agent, Copied, Copy, Found, Kept, Spec, Table, Ticket
from openshelf.membership.records import kept_of
from openshelf.membership.store import Is
from openshelf.space.hosts.kept_names import KeptNames, _Made
from tests.conformance.virtual_store import VirtualStore
from tests.space.hosts.agreed.simulation import STORE, Line, Scheduler, Violation

HOSTS, NAMES, ROOM = 4, 2, 1 << 20
SECONDS, HEALED = 40.0, 20.0
DRAFT, LIVE = _core.State.DRAFT, _core.State.LIVE


class Died(BaseException):
    """Ends what a process of a dead host was at."""


@dataclasses.dataclass
class Array:
    """An array at a home: what KeptNames reads of a pin, and its bytes."""

    address: int
    name: str
    state: int
    value: int | None
    nbytes: int = 8
    dtype: int = 0
    kind: int = 0
    shape: tuple[int, ...] = (1,)
    descr: str = ""


@dataclasses.dataclass
class Write:
    """Of a name: None is a deletion."""

    value: int | None
    start: float
    end: float = math.inf  # when it was acknowledged


class Part:
    """The memory of one host in one life."""

    def __init__(self, number: int, life: int) -> None:
        self.arrays: dict[int, Array] = {}
        self._next = number * ROOM + life * 4096

    def make(
        self, nbytes: int, dtype: int, kind: int, shape: Sequence[int], descr: str, name: str, zero: bool
    ) -> Array:
        self._next += 8
        made = self.arrays[self._next] = Array(self._next, name, DRAFT, None)
        return made

    def publish(self, array: Array, replace: bool) -> None:
        if self.arrays.get(array.address) is not array:
            raise HostLost("it is another part by now")
        array.state = LIVE

    def find(self, name: str) -> Array | None:
        return next((one for one in self.arrays.values() if one.name == name and one.state == LIVE), None)

    def list(self, prefix: str) -> list[tuple[str]]:
        return [(one.name,) for one in self.arrays.values() if one.state == LIVE and one.name.startswith(prefix)]

    def remove(self, name: str) -> bool:
        there = self.find(name)
        return there is not None and self.arrays.pop(there.address) is there

    def store(self, array: Array, value: int | None) -> None:
        """Plain stores: who has the array reaches it, also when nobody finds it any more."""
        array.value = value
        if array.address // ROOM and not any(one is array for one in self.arrays.values()):
            raise HostLost("its host lost it")

    def load(self, array: Array) -> int | None:
        if array.state == DRAFT and self.arrays.get(array.address) is not array:
            raise HostLost("its host lost it")
        return array.value


class Mortal(Line):
    """A host's way to the store, until that host dies."""

    def __init__(self, world: World, host: Host) -> None:
        super().__init__(world, host.number)  # type: ignore[arg-type]  # this world stands for the other
        self._of, self._life = host, host.life

    def _through(self, call: Callable[[], Any]) -> Any:
        def alive() -> Any:
            self._of.check(self._life)
            return call()

        self._of.world.pause()
        self._of.check(self._life)
        answer = super()._through(alive)
        self._of.check(self._life)
        return answer


class PlantedCopied(Copied):
    """With what must not be left out left out."""

    planted: frozenset[str] = frozenset()

    def reorder(self, name: str, found: Found, left: tuple[Copy, ...]) -> bool:
        if "old revision" not in self.planted:
            return super().reorder(name, found, left)
        assert found.kept is not None
        return _put(self, name, found.kept._replace(copies=left), [])

    def commit(self, name: str, found: Found, kept: Kept, uids: Any, ticket: Ticket) -> bool:
        if not self.planted & {"no fencing", "old revision"}:
            return super().commit(name, found, kept, uids, ticket)
        conditions = [Is(self._making(uid), value="1") for uid in uids]
        if "old revision" not in self.planted:
            conditions.append(Is(self._kept(name), revision=found.revision))
        return _put(self, name, kept, conditions)


def _put(membership: Copied, name: str, kept: Kept, conditions: list[Is]) -> bool:
    return membership.store.change(conditions, {membership._kept(name): (json.dumps(kept._asdict()), 0)})


class PlantedNames(KeptNames):
    planted: frozenset[str] = frozenset()

    def _copies(self, parts: Any, pin: Any, name: str, found: Found) -> list[_Made]:
        made = super()._copies(parts, pin, name, found)
        return [] if "lost replica" in self.planted else made

    def _commit(self, parts: Any, name: str, found: Found, kept: Kept, attempt: Any) -> bool:
        if "no fencing" in self.planted:
            attempt.done = self._membership.commit(name, found, kept, attempt.uids, self._ticket(parts))
            return bool(attempt.done)
        return super()._commit(parts, name, found, kept, attempt)


class Host:
    """A keeper's agent, a process that reads and writes names, and what the keeper has done after changes."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.address = world, number, f"10.0.0.{number}:7400"
        self.life, self.back_at, self.stopped_until = 0, 0.0, 0.0
        self.part, self.table = Part(number, 0), None

    part: Part
    table: Table | None

    def check(self, life: int) -> None:
        if life != self.life:
            raise Died

    def die(self, back_at: float) -> None:
        self.life, self.back_at = self.life + 1, back_at
        self.part, self.table = Part(self.number, self.life), None

    def again(self, run: Callable[[], None]) -> None:
        """In every life of the host."""
        while True:
            try:
                run()
            except Died:
                self.world.actors.sleep(max(0.0, self.back_at - self.world.actors.now))

    def keeper(self) -> None:
        life, actors = self.life, self.world.actors
        membership = Copied(Mortal(self.world, self), "demo", monotonic=lambda: actors.now)
        while self.table is None:
            try:
                ticket = membership.join(self.address, f"life{self.number}.{life}")
                self.table = Table(membership.view(), ticket)
            except OpenshelfError:
                actors.sleep(0.5)
        agent = Agent(membership, self.address, self.table, self._follow, lambda text: None)
        while True:
            agent.step()
            agent.wait(LEASE_S / 3)
            while actors.now < self.stopped_until:  # SIGSTOP
                actors.sleep(self.stopped_until - actors.now + 0.001)

    def _follow(self, table: Table) -> None:
        self.table = table

    def _names(self) -> KeptNames:
        actors = self.world.actors
        membership = PlantedCopied(Mortal(self.world, self), "demo", monotonic=lambda: actors.now)
        clock = SimpleNamespace(monotonic=lambda: actors.now, sleep=actors.sleep)
        names = PlantedNames(self.number, f"life{self.number}.{self.life}", membership, 2, clock)
        names.planted = membership.planted = self.world.planted
        return names

    def process(self) -> None:
        actors, names, parts = self.world.actors, self._names(), Parts(self)
        while True:
            actors.sleep(actors.random.uniform(0.01, 0.6))
            self.check(parts.life)
            if self.table is None:
                continue
            try:
                self._work(names, parts, f"name{actors.random.randrange(NAMES)}", actors.random.random())
            except (HostLost, NoAgreement, NameTaken, NoRoom, Closed, UnknownName):
                continue

    def _work(self, names: KeptNames, parts: Any, name: str, what: float) -> None:
        world = self.world
        if what < 0.3:
            draft = self.part.make(8, 0, 0, (1,), "", f"\x04{world.number():016x}/{name}", False)
            with world.write(name, world.number()) as write:
                draft.value = write.value
                names.publish(parts, draft, True)  # type: ignore[arg-type]  # no real array
        elif what < 0.35 and world.deletes:
            with world.write(name, None):
                names.remove(parts, name)
        elif what < 0.6:
            pin: Any = names.find(parts, name)
            if pin is not None:
                with world.write(name, world.number()) as write:
                    parts.native_of(pin.address // ROOM).store(pin, write.value)
                    names.flush(parts, pin)
        else:
            start = world.actors.now
            pin = names.find(parts, name)
            value = None if pin is None else parts.native_of(pin.address // ROOM).load(pin)
            world.check(name, value, start)

    def tidier(self) -> None:
        """Begun by the keeper after changes; here every now and then."""
        names, parts = self._names(), Parts(self)
        while True:
            self.world.actors.sleep(self.world.actors.random.uniform(0.5, 3))
            self.check(parts.life)
            if self.table is not None:
                try:
                    names.tidy(parts)  # type: ignore[arg-type]  # no real parts
                except (HostLost, NoAgreement, NoRoom):
                    continue


class Parts:
    """What a process of a host sees of all."""

    def __init__(self, host: Host) -> None:
        self._host, self.life = host, host.life

    @property
    def attachment(self) -> Any:
        self._host.check(self.life)
        assert self._host.table is not None
        return SimpleNamespace(term=self._host.table.ticket.term)

    hosts = tuple(f"10.0.0.{number}:7400" for number in range(HOSTS))

    def number_of(self, address: int) -> int:
        return address // ROOM

    def native_of(self, number: int) -> Any:
        return _Far(self._host, self.life, number)

    def follow(self, epoch: int) -> None:
        pass

    def copy(self, source: Any, target: Any) -> None:
        value = self.native_of(source.address // ROOM).load(source)
        self.native_of(target.address // ROOM).store(target, value)


class _Far:
    """The part of a host, as a process of a host calls it."""

    def __init__(self, caller: Host, life: int, home: int) -> None:
        self._caller, self._life, self._home = caller, life, home

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            world, caller, home = self._caller.world, self._caller, self._caller.world.hosts[self._home]
            caller.check(self._life)
            world.pause()
            world.actors.step()
            caller.check(self._life)
            away = caller.number != self._home
            if away and (world.lost(caller.number, self._home) or world.actors.now < home.back_at):
                raise HostLost("the call was lost")
            answer = getattr(home.part, name)(*arguments)
            world.actors.step()
            caller.check(self._life)
            if away and world.lost(self._home, caller.number):
                raise HostLost("the answer was lost")
            return answer

        return called


class World:
    """Everything that one seed makes."""

    def __init__(self, seed: int, planted: frozenset[str] = frozenset()) -> None:
        self.actors, self.store, self.planted = Scheduler(seed), VirtualStore(), planted
        self.writes: dict[str, list[Write]] = {f"name{n}": [Write(None, -1.0, -1.0)] for n in range(NAMES)}
        self.deaths = self.reads = self._last = 0
        self.deletes = (
            seed % 2 == 1
        )  # one that failed may be what a read shows from then on, so half of the seeds have none
        self._dead = 0, ""
        self._cut: set[tuple[int, int]] = set()
        self._faults = True
        self._truth = Copied(self.store, "demo")
        self._truth.make(Spec("07", 1 << 40, 1 << 35, HOSTS, 2))
        self.hosts = [Host(self, number) for number in range(HOSTS)]
        for host in self.hosts:  # a host's place is its number
            self._truth.resign(self._truth.join(host.address, f"life{host.number}.0"))
        for host in self.hosts:
            for run in (host.keeper, host.process, host.process, host.tidier):
                self.actors.start(lambda host=host, run=run: host.again(run))  # type: ignore[misc]  # mypy takes no defaults here
        self.actors.start(self._fate)

    def run(self) -> None:
        """Raises Violation."""
        try:
            self.actors.run(SECONDS, self.store.turn)
            self._faults = False
            self._cut.clear()
            self.actors.run(SECONDS + HEALED, self.store.turn)
            if not self.is_whole():
                raise Violation(f"{HEALED} s after the last fault some arrays have no two copies")
        finally:
            self.actors.end()

    @property
    def acknowledged(self) -> int:
        return sum(write.end < math.inf for writes in self.writes.values() for write in writes[1:])

    def number(self) -> int:
        self._last += 1
        return self._last

    def change(self, conditions: Sequence[Is], put: Mapping[str, tuple[str, int]], delete: Sequence[str]) -> bool:
        try:
            done = self.store.change(conditions, put, delete)
        except AssertionError as error:  # as etcd answers: there is no such lease any more
            raise NoAgreement(str(error)) from None
        if done and any("/kept/" in key for key in put):
            # Without a copy that was just made: hosts that were given up may keep theirs.
            most = None if any("/making/" in one.key for one in conditions) else 1
            self._check_members([copy for key, (text, _) in put.items() for copy in kept_of(text, key).copies[:most]])
        return done

    def _check_members(self, copies: list[Copy]) -> None:
        """What is acknowledged is on hosts that are members, in the life in which it was copied there."""
        state = self._truth._state()
        for copy in copies:
            if state.segments[copy.number].life != copy.life or not state.segments[copy.number].term:
                raise Violation(f"{copy} is committed, on a host that was given up: {state.segments}")

    def pause(self) -> None:
        """A process may be stopped before any step."""
        if self._faults and self.actors.random.random() < 0.004:
            self.actors.sleep(self.actors.random.uniform(0, 3 * LEASE_S))

    def write(self, name: str, value: int | None) -> Writing:
        return Writing(self, name, value)

    def check(self, name: str, value: int | None, start: float) -> None:
        """A read that began then may give what no acknowledged write has replaced before."""
        self.reads += 1
        writes = self.writes[name]
        replaced = max((write.start for write in writes if write.end < start), default=-2.0)
        if not any(write.value == value and write.end >= replaced for write in writes):
            raise Violation(f"{name} is {value} at {start:.3f}, after {writes[-12:]}")

    def is_whole(self) -> bool:
        """Whether everything is in the memory of two hosts."""
        every, least = self._truth.all_kept(), 1 if "lost replica" in self.planted else 2
        return all(sum(map(self._has, kept.copies)) >= least for kept in every.values())

    def _noticed(self) -> bool:
        """Whether the hosts agree that the last one that died did. Two that die within a lease are two at once."""
        number, life = self._dead
        state = self._truth._state()
        return number not in state.members or state.segments[number].life != life

    def _has(self, copy: Copy) -> bool:
        there = self.hosts[copy.number].part.arrays.get(copy.address)
        return there is not None and there.state == LIVE

    def lost(self, start: int, end: int) -> bool:
        return (start, end) in self._cut or (self._faults and self.actors.random.random() < 0.01)

    def _fate(self) -> None:
        """Deaths, cuts of every kind, also one-way ones, and keepers that are stopped."""
        draw = self.actors.random
        while True:
            self.actors.sleep(draw.uniform(0.3, 3))
            if not self._faults:
                continue
            host = draw.randrange(HOSTS)
            others = [STORE, *(number for number in range(HOSTS) if number != host)]
            what = draw.randrange(6)
            if what == 0:
                self._cut.clear()
            elif what == 1:
                self._cut |= {(host, STORE), (STORE, host)}
            elif what == 2:
                self._cut.add(draw.choice([(host, other) for other in others] + [(other, host) for other in others]))
            elif what == 3:
                self.hosts[host].stopped_until = self.actors.now + draw.uniform(0, 3 * LEASE_S)
            elif self._noticed() and self.is_whole():
                self.deaths += 1
                self._dead = host, f"life{host}.{self.hosts[host].life}"
                self.hosts[host].die(self.actors.now + draw.uniform(0.2, 2 * LEASE_S))


class Writing:
    """A write from here to the end of the block; acknowledged unless that raises."""

    def __init__(self, world: World, name: str, value: int | None) -> None:
        self._world, self._name = world, name
        self._write = Write(value, world.actors.now)

    def __enter__(self) -> Write:
        self._world.writes[self._name].append(self._write)
        return self._write

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._write.end = self._world.actors.now
