"""Several hosts for one test: directories, the file of hosts, processes on each, and the ways in which hosts fail.

Hosts are network namespaces of a Network, or, without one, ports on loopback. Every host has its own OPENSHELF_DIR, as
hosts do not share files. All of it lies in one directory of /dev/shm that bears the process that made it: what a killed
test run left there, processes included, goes at the next start.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import secrets
import shutil
import signal
import socket
import time
from pathlib import Path
from types import TracebackType

from tests.processes import PATIENCE
from tests.space.hosts.harness.net import Network
from tests.space.hosts.harness.nursery import Nursery, NurseryPeer

_PLACE = Path("/dev/shm")
_PREFIX = "openshelf-hosts-"
_FIRST_BASE, _LAST_BASE = 0x2100_0000_0000, 0x2E00_0000_0000  # plain spaces take what is below
RESERVE = 128 << 30
_KERNEL_THREAD = 0x0020_0000  # PF_KTHREAD, among the flags in /proc/PID/stat
_numbers = itertools.count(1)
_bare: set[tuple[str, str | None]] = set()  # processes without an environment, by number and start
_nurseries: dict[tuple[int, int], Nursery] = {}


def _born(pid: int) -> str | None:
    """The start time of a process: with its number, a name that is never used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


def processes_under(directory: Path) -> dict[int, bytes]:
    """Processes started with an OPENSHELF_DIR at or below a directory, and their command lines."""
    wanted, found = f"OPENSHELF_DIR={directory}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                for variable in environ_of(entry).split(b"\0"):
                    if variable == wanted or variable.startswith(wanted + b"/"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes()
    return found


def environ_of(process: Path) -> bytes:
    """A process's environment. Within exec it has none for a moment: then it is read again."""
    known = process.name, _born(int(process.name))
    deadline = time.monotonic() + 1
    while known not in _bare:
        if environ := (process / "environ").read_bytes():
            return environ
        state, *fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        if state in "ZX" or int(fields[5]) & _KERNEL_THREAD or time.monotonic() > deadline:
            _bare.add(known)
        time.sleep(0)
    return b""


def kill_all(directory: Path, but: tuple[int, ...] = ()) -> None:
    """Ends by SIGKILL what runs under a directory, and waits until it is gone."""
    deadline = time.monotonic() + 10 * PATIENCE
    while found := [pid for pid in processes_under(directory) if pid not in but]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} do not end")
        time.sleep(0.001)


@functools.cache
def sweep() -> None:
    """Takes away what dead test runs left."""
    for left in _PLACE.glob(f"{_PREFIX}*"):
        pid, born = left.name.removeprefix(_PREFIX).split("-")[:2]
        if _born(int(pid)) != born:
            kill_all(left)
            shutil.rmtree(left, ignore_errors=True)


def _nursery(network: Network | None, host: int) -> Nursery:
    """One per host of a network, for as long as the test run; one for all hosts on loopback."""
    key = (id(network), host) if network else (0, 0)
    if key not in _nurseries:
        _nurseries[key] = Nursery(network.path(host) if network else None)
    return _nurseries[key]


def close_nurseries() -> None:
    while _nurseries:
        _nurseries.popitem()[1].close()


class Host:
    """One entry of the file of hosts."""

    def __init__(self, cluster: Cluster, number: int, address: str) -> None:
        self.cluster, self.number, self.address = cluster, number, address
        self.directory = cluster.directory / f"host-{number}"
        self.directory.mkdir(mode=0o700)
        self.environment = {
            "OPENSHELF_DIR": str(self.directory),
            "OPENSHELF_HOSTS": str(cluster.file),
            **cluster.environment,
        }
        self.nursery = _nursery(cluster.network, number)
        self.peers: list[NurseryPeer] = []

    def url(self, name: str = "demo") -> str:
        return self.cluster.url_of(self, name)

    def peer(self, **environment: str) -> NurseryPeer:
        """A process on this host."""
        made = NurseryPeer(self.nursery, {**self.environment, **environment}, self.cluster.directory / "peers")
        self.peers.append(made)
        return made

    def keepers(self) -> list[int]:
        """The process numbers of its keeper: one, or none."""
        return [pid for pid, line in processes_under(self.directory).items() if b"keeper" in line]

    def kill_keeper(self, number: signal.Signals = signal.SIGKILL) -> int:
        """How many there were to kill."""
        found = self.keepers()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(found)

    def kill(self, silent: bool = False) -> None:
        """Everything on this host ends at once and its memory is gone. silent: no last word gets out on the wire."""
        network = self.cluster.network
        if silent and network:
            network.cut(self.number)
        for peer in self.peers:
            peer.signal(signal.SIGSTOP)  # else one of them might start a keeper while others are being killed
        kill_all(self.directory)
        for peer in self.peers:
            peer.kill()
        self.peers.clear()
        kill_all(self.directory)
        for entry in self.directory.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if silent and network:
            network.heal(self.number)  # it is back on the wire, empty

    def cut(self) -> None:
        assert self.cluster.network is not None
        self.cluster.network.cut(self.number)

    def heal(self) -> None:
        assert self.cluster.network is not None
        self.cluster.network.heal(self.number)


class Cluster:
    """`count` hosts with one file of hosts; a context that leaves nothing behind."""

    def __init__(self, count: int, network: Network | None = None, environment: dict[str, str] | None = None) -> None:
        sweep()
        self.network, self.environment, self.number = network, environment or {}, next(_numbers)
        self.directory = _PLACE / f"{_PREFIX}{os.getpid()}-{_born(os.getpid())}-{self.number}"
        self.directory.mkdir(mode=0o700)
        # A base of its own for each: views that a failed test keeps alive block no other.
        room = (_LAST_BASE - _FIRST_BASE) // (count * RESERVE)
        self.base = _FIRST_BASE + (self.number % room) * count * RESERVE
        self.key = secrets.token_hex(32)
        self.file = self.directory / "hosts.yaml"
        if network:
            self.addresses = [f"{address}:{7400 + self.number}" for address in network.addresses[:count]]
        else:
            self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.write_hosts(self.file)
        self.hosts = [Host(self, number, address) for number, address in enumerate(self.addresses)]

    def write_hosts(self, path: Path, key: str | None = None) -> None:
        lines = [f"key: {key or self.key}", f"base: {self.base:#x}", f"reserve: {RESERVE >> 30}GiB", "hosts:"]
        path.write_text("\n".join([*lines, *[f'  - "{address}"' for address in self.addresses]]) + "\n")
        path.chmod(0o600)

    def url_of(self, host: Host, name: str) -> str:
        return f"openshelf://{host.address}/{name}"

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def __len__(self) -> int:
        return len(self.hosts)

    def texts(self) -> str:
        """What all processes wrote to standard error: for the message of a failure."""
        return "\n".join(text for log in self.directory.glob("peers/*.log") if (text := log.read_text().strip()))

    def keeper_texts(self) -> str:
        """The last lines of the keepers' logs, in the order of time."""
        logs = [
            log.read_text(errors="replace").splitlines()[-60:] for log in self.directory.glob("host-*/keeper@*.log")
        ]
        return "\n".join(sorted(line for lines in logs for line in lines if re.match(r"\d\d:", line)))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # last in, first out; each is done, whatever the others raise
            stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            if self.network:
                stack.callback(self.network.reset)
            stack.callback(kill_all, self.directory)
            for peer in [peer for host in self.hosts for peer in host.peers]:
                stack.callback(peer.kill)
                stack.callback(_close_quietly, peer)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (text := self.texts()):
            error.add_note(text[-4000:])
        self.close()


def _close_quietly(peer: NurseryPeer) -> None:
    with contextlib.suppress(OSError):
        peer.pipe.close()


_FIRST_PORT, _EACH = 10_000, 2_800  # below those that the system gives to connections, which come and go
_next_port = random.Random(os.getpid()).randrange(_EACH)


def free_ports(count: int) -> list[int]:
    """Ports in a row that nobody has, and that no other test process takes: each has some of its own."""
    global _next_port
    first = _FIRST_PORT + _EACH * min(int(os.environ.get("PYTEST_XDIST_WORKER", "gw7")[2:]), 7)
    while True:
        start = _next_port if _next_port + count <= _EACH else 0
        _next_port = start + count
        ports = list(range(first + start, first + start + count))
        with contextlib.ExitStack() as stack:
            try:
                for port in ports:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return ports
