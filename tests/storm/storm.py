"""Runs a storm: starts the workers, kills and stops them and their keepers as the plan says, and judges.

No wrong byte: workers judge by the ledger what they read, and at the end all is compared once more. No process ends by
a signal that the storm did not send. Nobody hangs: no step takes 10 s of the time that this process itself got to run,
so that a busy machine is not mistaken for a hang; stopped time is not counted. Nothing leaks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from openshelf.errors import NoAgreement
from openshelf.membership import Agreed, Etcd, read_table
from openshelf.space.hosts.hosts_file import GRANULE, MOST_HOSTS
from tests.conftest import alive, has_threads
from tests.processes import Died, Failed, stop_process
from tests.space.hosts.harness.agreed import AgreedCluster
from tests.space.hosts.harness.cluster import RESERVE, Cluster, free_ports, processes_under
from tests.space.hosts.harness.etcd import Servers
from tests.space.hosts.harness.nursery import NurseryPeer
from tests.space.hosts.storm import check_last_words
from tests.storm import judge
from tests.storm.guest import HOSTS
from tests.storm.ledger import CHILD, DOING, REMOVING, SINCE_NS, SPACES, STEP, TALLIES, THERE, WORKERS, Ledger, Problem
from tests.storm.member import TITLES
from tests.storm.plan import OVER_HOSTS, Event, events, operations
from tests.storm.stuck import where_is
from tests.storm.work import work
from tests.storm.worker import REMOVED, TROUBLE_S

HANG_S = 10.0
_TICK_S = 0.005
_LINGER_S = dict.fromkeys(
    OVER_HOSTS, "600"
)  # of keepers: longer than all processes of a host have nothing open, on any machine


class Slot:
    """One worker after another."""

    def __init__(self, number: int, hosts: int) -> None:
        self.number, self.host, self.lives = number, number % hosts, 0
        self.peer: NurseryPeer | None = None
        self.stopped = False


class Watched:
    """How long a slot of the ledger has been at one thing, in time that the watch itself got to run."""

    def __init__(self) -> None:
        self.since, self.age = 0, 0.0


class Storm:
    def __init__(self, cluster: Cluster, kind: str, seed: int) -> None:
        self.cluster, self.kind, self.seed = cluster, kind, seed
        self.place, self.hosts = cluster.directory, cluster.hosts
        (self.place / "flash").mkdir()
        self.servers = cluster.servers if isinstance(cluster, AgreedCluster) else None
        room = MOST_HOSTS * GRANULE if self.servers else HOSTS * RESERVE
        bases = [f"{title}: {cluster.base + number * room:#x}" for number, title in enumerate(TITLES)]
        text = cluster.file.read_text().replace(f"base: {cluster.base:#x}", f"base: {{{', '.join(bases)}}}")
        cluster.file.write_text(text)
        self.book = Ledger(self.place / "ledger")
        self.slots = [Slot(number, len(cluster)) for number in range(WORKERS)]
        self.watched = [Watched() for _ in range(2 * WORKERS)]
        self.looked = time.monotonic()
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Events for so long; then everybody ends, and what is left is judged."""
        try:
            if self.kind in OVER_HOSTS:
                self.publish(list(range(SPACES)))
            for slot in self.slots:
                self.start(slot)
            self.watch(0.3)
            end = time.monotonic() + seconds
            for event in events(self.kind, self.seed):
                self.watch(event.pause)
                getattr(self, event.what)(event)
                self.done[event.what] += 1
                if time.monotonic() > end:
                    break
            self.settle()
            self.finish()
        except BaseException as error:
            error.add_note(self.story())
            raise

    def start(self, slot: Slot) -> None:
        peer = self.peer(slot.host)
        self.book.slots[slot.number] = 0
        slot.lives += 1
        peer.start(work, self.kind, slot.number, self.seed, slot.lives, str(self.place))
        slot.peer = peer

    def peer(self, host: int) -> NurseryPeer:
        servers = f"etcd://{','.join(self.servers.clients)}" if self.servers else ""
        url = servers or self.hosts[host].url("").rstrip("/")
        return self.hosts[host].peer(OPENSHELF_LINGER=_LINGER_S.get(self.kind, "1"), STORM_URL=url)

    # What is done to them

    def kill(self, event: Event) -> None:
        slot = self.slots[event.whom]
        self.end(slot)
        self.start(slot)

    def kill_all(self, event: Event) -> None:
        """The next to open a space finds only what is in its files."""
        for slot in self.slots:
            self.end(slot)
        for slot in self.slots:
            self.start(slot)

    def end(self, slot: Slot) -> None:
        """By SIGKILL; a child of it lives on and ends by itself, in order."""
        assert slot.peer is not None
        slot.peer.kill()
        code = slot.peer.process.exitcode
        if code != -signal.SIGKILL:
            self.judge_death(slot, slot.peer, code)
        self.orphan(slot)
        slot.peer = None

    def orphan(self, slot: Slot) -> None:
        if child := int(self.book.slots[slot.number, CHILD]):
            number = WORKERS + slot.number
            while alive(child):
                self.look(number)
                self.wait()
            if self.book.slots[number, DOING] and not self.book.slots[number, CHILD]:
                assert slot.peer is not None
                self.judge_death(slot, slot.peer, -signal.SIGBUS)  # nobody was told how; its last words say why

    def kill_child(self, event: Event) -> None:
        """A forked child; its parent looks how it ended."""
        row = self.book.slots[event.whom]
        if child := int(row[CHILD]):
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(child)
                if int(row[CHILD]) == child:  # not reaped when the descriptor was had: it is the one
                    self.book.slots[WORKERS + event.whom, CHILD] = 1
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)

    def stop(self, event: Event) -> None:
        slot = self.slots[event.whom]
        assert slot.peer is not None
        with self.stopped(slot.peer.pid):
            slot.stopped = True
            self.watch(event.seconds)
        slot.stopped = False

    @contextlib.contextmanager
    def stopped(self, pid: int) -> Iterator[None]:
        with contextlib.suppress(OSError):  # a keeper may have ended
            stop_process(pid)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)

    def kill_keeper(self, event: Event) -> None:
        """One of them, as soon as it is there; nothing is lost with it."""
        if keepers := self.keepers():
            self.book.trouble_s = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(keepers[event.whom % len(keepers)], signal.SIGKILL)

    def stop_keeper(self, event: Event) -> None:
        """And then, or not, kills it without it having gone on."""
        if keepers := self.keepers():
            self.book.trouble_s = time.monotonic()
            pid = keepers[event.whom % len(keepers)]
            with self.stopped(pid):
                self.watch(event.seconds)
                if event.whom % 2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def keepers(self) -> list[int]:
        return sorted(pid for host in self.hosts for pid in host.keepers())

    # What is done to those who agree

    def give_up(self, event: Event) -> None:
        """The lease of a host ends, though all of it is well. Nothing is lost, and nobody need notice."""
        assert self.servers is not None
        index, host = event.whom % SPACES, self.hosts[event.whom // SPACES % HOSTS]
        store = Etcd(self.servers.clients)
        membership = Agreed(store, TITLES[index])
        for part in host.directory.glob(f"{TITLES[index]}@*"):
            with contextlib.suppress(NoAgreement):
                if (table := read_table(part)) is not None:
                    membership.resign(table.ticket)
        store.close()

    @contextlib.contextmanager
    def without_agreement(self) -> Iterator[Servers]:
        """Publications may fail while it lasts."""
        assert self.servers is not None
        self.book.trouble_s = time.monotonic()
        yield self.servers
        self.servers.await_majority()
        self.book.trouble_s = time.monotonic()

    def stop_server(self, event: Event) -> None:
        with self.without_agreement() as servers:
            servers.signal(event.whom % servers.COUNT, signal.SIGSTOP)
            self.watch(event.seconds)
            servers.signal(event.whom % servers.COUNT, signal.SIGCONT)

    def kill_server(self, event: Event) -> None:
        with self.without_agreement() as servers:
            servers.kill(event.whom % servers.COUNT)
            self.watch(event.seconds)
            servers.start(event.whom % servers.COUNT)

    def lose_servers(self, event: Event) -> None:
        with self.without_agreement() as servers:
            for number in range(servers.COUNT):
                servers.kill(number)
            self.watch(event.seconds)
            for number in range(servers.COUNT):
                servers.start(number)

    def publish(self, indexes: list[int]) -> None:
        """The next life of spaces over hosts."""
        lives = {index: self.book.life(index)[0] + 1 for index in indexes}
        self.ask(judge.furnish_over_hosts, lives)
        for host in range(1, len(self.hosts)):
            self.ask(judge.visit, indexes, host=host)  # a keeper is there from now on
        for index, life in lives.items():
            self.book.live(index, life, THERE)

    def remake(self, event: Event) -> None:
        """Everybody leaves a space over hosts; one part or both are removed, while keepers live, and made again."""
        index, both = event.whom % SPACES, event.whom % 2
        life = self.book.life(index)[0]
        self.book.live(index, life, REMOVING)
        while (self.book.left[index] != self.book.lives[index]).any():
            self.watch(0)
            self.wait()
        for host in range(1 - both, len(self.hosts)):
            self.ask(judge.remove_parts, [index], host=host)
        if both:
            self.publish([index])
        else:
            judge.forget_home(self.book, index, life, 1)
            self.ask(judge.visit, [index], host=1)  # who calls a host without a part is refused
            self.book.live(index, life, THERE)

    def power_cut(self, event: Event) -> None:
        """All processes and all of memory are gone; what was flushed is restored."""
        for pid in processes_under(self.place):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)  # else one of them might start a keeper while others are being killed
        for slot in self.slots:
            if child := int(self.book.slots[slot.number, CHILD]):
                self.book.slots[WORKERS + slot.number, CHILD] = 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        for pid in self.keepers():
            os.kill(pid, signal.SIGKILL)
        for slot in self.slots:
            self.end(slot)
        self.sweep()
        for entry in self.hosts[0].directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
        self.ask(judge.restore, self.kind, str(self.place))
        for slot in self.slots:
            self.start(slot)

    def sweep(self) -> None:
        """Nobody is left, not even a thread of a killed process that is still in a system call and makes a file."""
        killed: set[int] = set()
        while True:
            left = processes_under(self.place)
            killed.update(left)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not any(has_threads(pid) for pid in killed):
                return
            self.wait()

    def ask(self, function: object, *arguments: object, host: int = 0) -> object:
        """One call in a process of its own."""
        peer = self.peer(host)
        answer = peer.call(function, *arguments)  # type: ignore[arg-type]
        peer.stop()
        return answer

    # What must be true

    def watch(self, seconds: float) -> None:
        """Looks after the workers for a while."""
        end = time.monotonic() + seconds
        while True:
            for slot in self.slots:
                if slot.peer is not None and slot.peer.pipe.poll():
                    self.ended(slot, slot.peer)
            for number in range(2 * WORKERS):
                self.look(number)
            if time.monotonic() >= end:
                return
            self.wait()

    def wait(self) -> None:
        """A tick of the watch."""
        time.sleep(_TICK_S)
        now = time.monotonic()
        passed, self.looked = min(now - self.looked, 10 * _TICK_S), now
        for number, watched in enumerate(self.watched):
            since = int(self.book.slots[number, SINCE_NS]) if self.book.slots[number, DOING] else 0
            if since != watched.since or not since:
                watched.since, watched.age = since, 0.0
            elif not self.slots[number % WORKERS].stopped:
                watched.age += passed

    def look(self, number: int) -> None:
        if self.watched[number].age > HANG_S:
            row = self.book.slots[number]
            if number >= WORKERS and not alive(int(self.book.slots[number - WORKERS, CHILD])):
                self.watched[number].age = 0.0
                row[DOING] = 0  # it was killed
                return
            took = (time.monotonic_ns() - int(row[SINCE_NS])) / 1e9
            child = " (its child)" if number >= WORKERS else ""
            raise Problem(f"worker {number % WORKERS}{child} hangs for {took:.1f} s{self.where()}")

    def where(self) -> str:
        """The stacks of all processes of the storm, keepers too."""
        pids = sorted(processes_under(self.place))
        return "".join(f"\n{where_is(pid)}" for pid in pids)

    def ended(self, slot: Slot, peer: NurseryPeer) -> None:
        try:
            answer = peer.finish()
        except Failed as error:
            raise Problem(f"worker {slot.number}: {error}") from None
        except Died as death:
            self.judge_death(slot, peer, death.code)
            self.orphan(slot)
            self.start(slot)
            return
        raise Problem(f"worker {slot.number} stopped by itself: {answer}")

    def judge_death(self, slot: Slot, peer: NurseryPeer, code: int | None) -> None:
        """A touch of what cannot be brought back ends a process: a host is lost; or the space was removed and then its
        keeper killed, which has no successor. Nothing else does."""
        troubled = time.monotonic() - self.book.trouble_s < TROUBLE_S
        text = peer.text()
        words = [line for line in text.splitlines() if line.startswith("openshelf: ")]
        if self.kind == "plain" or code != -signal.SIGBUS or not troubled or not words:
            raise Problem(f"worker {slot.number} or its child ended by itself with {code}: {text}")
        if self.kind in OVER_HOSTS:
            check_last_words(text, [host.address for host in self.hosts])
        elif not all(REMOVED in line for line in words):
            raise Problem(f"a touch ended worker {slot.number} or its child, though its space was not removed: {text}")
        self.done["touches of lost bytes"] += 1

    def settle(self) -> None:
        """Left alone, everybody gets on."""
        before = [int(self.book.slots[slot.number, STEP]) for slot in self.slots]
        for slot in self.slots:
            while int(self.book.slots[slot.number, STEP]) == before[slot.number]:
                self.watch(0.01)

    def finish(self) -> None:
        self.book.stop = True
        for slot in self.slots:
            assert slot.peer is not None
            while not slot.peer.pipe.poll():
                for number in range(2 * WORKERS):
                    self.look(number)
                self.wait()
            try:
                slot.peer.finish()
            except Failed as error:
                raise Problem(f"worker {slot.number}: {error}") from None
            slot.peer.stop()
        if self.kind in OVER_HOSTS:
            for host in range(len(self.hosts)):
                self.ask(judge.last_look_over_hosts, str(self.place), host=host)
            for host in range(len(self.hosts)):
                self.ask(judge.remove_parts, list(range(SPACES)), host=host)
            for pid in self.keepers():
                with contextlib.suppress(ProcessLookupError):  # one of an agreement ends when its part is gone
                    os.kill(pid, signal.SIGTERM)
        else:
            self.ask(judge.last_look, self.kind, str(self.place))
        deadline = time.monotonic() + 30
        while left := self.left():
            if time.monotonic() > deadline:
                raise Problem(f"when all is over there are still {left}")
            time.sleep(0.02)

    def left(self) -> list[str]:
        """Processes and files after everything was removed. The registry's lock is the directory's own, and what a
        host's keeper leaves is its log and the files that it locks."""
        files = [path for host in self.hosts for path in host.directory.rglob("*")]
        files = [path for path in files if path.name != ".lock" and not path.name.startswith("keeper@")]
        processes = processes_under(self.place).items()
        return [str(path) for path in [*files, *(self.place / "flash").iterdir()]] + [
            f"process {pid}: {line!r}" for pid, line in processes if alive(pid)
        ]

    @property
    def steps(self) -> dict[str, int]:
        """What workers did in all their lives."""
        return dict(zip(TALLIES, self.book.tallies.sum(axis=0).tolist(), strict=True))

    # What a failure says

    def story(self) -> str:
        lines = [f"seed {self.seed}; again: {replay(self.kind, self.seed)}", f"done: {dict(self.done)}, {self.steps}"]
        for slot in self.slots:
            step = int(self.book.slots[slot.number, STEP])
            plan = operations(self.kind, self.seed, slot.number, slot.lives)
            last = list(enumerate(itertools.islice(plan, step + 1)))[-6:]
            lines += [f"worker {slot.number}, life {slot.lives}, pid {slot.peer.pid if slot.peer else 'none'}:"]
            lines += [f"  {number} {' '.join(map(str, operation))}" for number, operation in last]
        lines += [f"{title}: {self.book.life(index)}" for index, title in enumerate(TITLES)]
        for log in sorted(self.place.glob("host-*/**/keeper*.log")):
            lines += [f"{log}:", *log.read_text(errors="replace").splitlines()[-20:]]
        return "\n".join(lines)


def replay(kind: str, seed: int) -> str:
    return f"python -m tests.storm {kind} --seed {seed}"


def storm(kind: str, seed: int, seconds: float) -> Storm:
    """One storm from beginning to end; nothing of it stays."""
    with contextlib.ExitStack() as stack:
        if kind == "agreed":
            place = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-etcd-"))
            servers = stack.enter_context(Servers(free_ports(6), Path(place)))
            servers.await_majority()
            agreed = stack.enter_context(AgreedCluster(HOSTS, servers))
            agreed.let_spaces_choose_ports()
            cluster: Cluster = agreed
        else:
            cluster = stack.enter_context(Cluster(HOSTS if kind == "hosts" else 1))
        made = Storm(cluster, kind, seed)
        made.run(seconds)
        return made
