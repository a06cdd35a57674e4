"""Kills and cuts on three hosts under load, and what must be true all the time and at the end.

Nobody hangs: a step of a worker takes less than 5 seconds. Nobody dies but by our hand, or by touching bytes of a host
that was lost, with a message that says so. What is read is what the ledger allows.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import time
from collections import Counter

from tests.processes import Died, Failed, State
from tests.space.hosts.coherence import fault_worker
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer
from tests.space.hosts.ledger import DOING, HOSTS, SINCE_NS, STEPS, UNITS, Ledger, Problem, versions

HANG_SECONDS = 10.0  # one loss is noticed in 3 s; a touch may meet one after another, on a machine that is busy
EACH = 2  # workers of a host


class Slot:
    """One worker after another."""

    def __init__(self, number: int) -> None:
        self.number, self.host = number, number % HOSTS
        self.peer: NurseryPeer | None = None
        self.born = 0.0


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.random = cluster, random.Random(seed)
        self.path = str(cluster.directory / "ledger")
        self.book = Ledger(cluster.directory / "ledger")
        self.slots = [Slot(number) for number in range(HOSTS * EACH)]
        self.lost_at: dict[int, float] = {}  # when a host was last out of reach, or became so
        self.cut: dict[int, float] = {}  # hosts that are cut now, and until when
        self.done: Counter[str] = Counter()
        self.touched = 0

    def begin(self) -> None:
        for host in range(HOSTS):
            self.publish(host)
        for slot in self.slots:
            self.start(slot)

    def publish(self, host: int) -> None:
        """A host begins, or begins anew after it was killed."""
        with contextlib.closing(_Calling(self.cluster[host].peer())) as call:
            call(fault_worker.publish, self.cluster[host].url(), host, self.path)

    def start(self, slot: Slot) -> None:
        host = self.cluster[slot.host]
        self.book.slots[slot.number] = 0
        slot.peer, slot.born = host.peer(), time.monotonic()
        seed = self.random.getrandbits(40)
        slot.peer.start(fault_worker.work, host.url(), slot.host, slot.number, seed, self.path)

    # What is done to them

    def kill_client(self) -> None:
        slot = self.random.choice(self.slots)
        if slot.peer is not None and slot.host not in self.cut:
            slot.peer.kill()
            self.start(slot)

    def kill_keeper(self) -> None:
        """Nothing is lost with it: its processes start the next one, which goes on where it was."""
        self.cluster[self.random.randrange(HOSTS)].kill_keeper()

    def kill_host(self) -> None:
        host = self.random.choice([host for host in range(HOSTS) if host not in self.cut])
        self.lose(host)
        self.book.end(host)
        self.cluster[host].kill(silent=self.random.random() < 0.5)
        self.lose(host)
        here = [slot for slot in self.slots if slot.host == host]
        for slot in here:
            slot.peer = None
        if self.random.random() < 0.3:
            self.watch(3.5)  # long enough to be missed
        self.lose(host)
        self.publish(host)
        for slot in here:
            self.start(slot)

    def cut_link(self) -> None:
        if self.cut:
            return
        host = self.random.randrange(HOSTS)
        length = self.random.choice([0.2, 0.5, 1.0, 2.0, 4.0, 6.5])
        self.lose(host)
        self.cluster[host].cut()
        self.lose(host)  # again: what was acknowledged until the cut took effect may fall back too
        self.cut[host] = time.monotonic() + length

    def heal(self, now: float) -> None:
        for host, until in list(self.cut.items()):
            if now >= until:
                self.lose(host)
                self.cluster[host].heal()
                del self.cut[host]

    def lose(self, host: int) -> None:
        self.book.lose(host)
        self.lost_at[host] = time.monotonic()

    # What must be true

    def watch(self, seconds: float) -> None:
        """Looks after the workers for a while."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self.heal(now)
            for slot in self.slots:
                if slot.peer is not None:
                    self.look(slot, slot.peer)
            if now >= end:
                return
            time.sleep(0.005)

    def look(self, slot: Slot, peer: NurseryPeer) -> None:
        if peer.pipe.poll():
            self.ended(slot, peer)
        elif self.book.slots[slot.number, DOING]:
            age = (time.monotonic_ns() - int(self.book.slots[slot.number, SINCE_NS])) / 1e9
            if age > HANG_SECONDS:
                what = fault_worker.STEP_NAMES[int(self.book.slots[slot.number, DOING])]
                peer.signal(signal.SIGUSR1)
                time.sleep(0.2)
                where = f"worker {slot.number} on host {slot.host}"
                raise Problem(f"{where} hangs in {what} for {age:.1f} s\n{peer.text()}")

    def ended(self, slot: Slot, peer: NurseryPeer) -> None:
        """One that was not told to: by a touch of what is lost, or by an error that we want to hear of."""
        try:
            answer = peer.finish()
            raise Problem(f"worker {slot.number} stopped by itself: {answer}")
        except Failed as error:
            if "HostLost" not in str(error) or "Problem" in str(error):
                raise Problem(f"worker {slot.number} on host {slot.host}: {error}") from None
        except Died as death:
            self.check_death(slot, peer, death)
        self.start(slot)

    def check_death(self, slot: Slot, peer: NurseryPeer, death: Died) -> None:
        if death.code != -signal.SIGBUS:
            raise Problem(f"worker {slot.number} on host {slot.host} ended with {death.code}: {peer.text()}")
        self.touched += 1
        recent = [host for host, at in self.lost_at.items() if time.monotonic() - at < 15]
        check_last_words(peer.text(), [host.address for host in self.cluster.hosts])
        if not recent:
            raise Problem(f"worker {slot.number} lost bytes though no host was lost: {peer.text()}")

    def run(self, events: dict[str, int], pause: float) -> None:
        """All events in random order, with a short time between them."""
        what = [getattr(self, name) for name, count in events.items() for _ in range(count)]
        self.random.shuffle(what)
        try:
            self.begin()
            self.watch(0.5)
            for number, event in enumerate(what):
                event()
                self.done[event.__name__] += 1
                self.watch(self.random.random() * 2 * pause)
                if number % 25 == 24:
                    self.settle()
            self.finish()
        except BaseException as error:
            now = time.strftime("%T", time.gmtime())
            error.add_note(f"at {now}, after {dict(self.done)}, {self.touched} touches of lost bytes")
            error.add_note(self.cluster.keeper_texts())
            raise

    def settle(self) -> None:
        """With all links whole, every worker gets on with its work."""
        while self.cut:
            self.watch(0.1)
        before = {slot.number: int(self.book.slots[slot.number, STEPS]) for slot in self.slots}
        deadline = time.monotonic() + 12
        while True:
            self.watch(0.05)
            stuck = [s.number for s in self.slots if int(self.book.slots[s.number, STEPS]) == before[s.number]]
            if not stuck:
                return
            if time.monotonic() > deadline:
                raise Problem(f"workers {stuck} do nothing any more, 12 s after the last fault")

    def finish(self) -> None:
        self.settle()
        self.book.stop = True
        for slot in self.slots:
            assert slot.peer is not None
            counts = slot.peer.finish(HANG_SECONDS * 2)
            if counts["read"] == 0:
                raise Problem(f"worker {slot.number} read nothing: {counts}")
            slot.peer.stop()
        for host in range(HOSTS):
            with contextlib.closing(_Calling(self.cluster[host].peer())) as call:
                call(look_at_all, self.cluster[host].url(), host, self.path)


class _Calling:
    """A process for one call."""

    def __init__(self, peer: NurseryPeer) -> None:
        self.peer = peer

    def __call__(self, *what: object) -> object:
        return self.peer.call(*what)  # type: ignore[arg-type]

    def close(self) -> None:
        self.peer.stop()


def look_at_all(state: State, url: str, host: int, path: str) -> None:
    """Nobody works any more: every lock is free, every unit is what it must be, and the metadata of all is sound."""
    worker.enter(state, url)
    last = fault_worker.Worker(url, host, 0, 1, path, worker.CONTRIBUTE)
    last.space = state["space"]
    for home in range(HOSTS):
        units = fault_worker.Units(last, home, int(last.book.epochs[home]))
        for unit in range(UNITS):
            if not units.locks[unit].acquire(HANG_SECONDS):
                raise Problem(f"the lock of unit {unit} of host {home} is held by nobody who lives")
            found = versions(units.view[unit].copy(), home, unit, units.epoch)
            last.book.check(home, unit, found, host)
            units.locks[unit].release()
    faults = {k: v for k, v in last.space.check().items() if k not in ("arrays", "bytes") and v}
    if faults:
        raise Problem(f"the check finds {faults}")


def check_last_words(text: str, addresses: list[str]) -> None:
    """A process that ends by touching lost bytes says which host, which range, and what to do about it."""
    named = any(address in text for address in addresses)
    if not named or not re.search(r"0x[0-9a-f]{6,}", text) or not re.search(r"\b(get|pin|prefetch)", text):
        raise Problem(f"the last words do not name host, range and remedy: {text!r}")
