"""What people use between hosts, on the same two hosts: Redis, Ray, gloo, MPI. One that is absent says why."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kit.servers import Absent, free_port, needs
from openshelf.show.tour import Failed, Host, Line, TwoHosts

PROCESS = str(Path(__file__).parents[1] / "processes" / "hosts_peers.py")


class Peer:
    """`get` returns the seconds of `count` transfers of `nbytes` from host a into memory of a process on host b."""

    name = ""

    def __init__(self) -> None:
        self.a: Line | None = None
        self.b: Line
        self.server: subprocess.Popen[bytes] | None = None

    def get(self, nbytes: int, count: int) -> list[float]:
        if self.a is not None:
            self.a.start("serve", nbytes, count)
        times: list[float] = self.b.call("get", nbytes, count)
        if self.a is not None:
            self.a.finish()
        return times

    def close(self) -> None:
        for line in (self.b, self.a):
            if line is not None:
                line.close()
        if self.server is not None:
            self.server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(5)
            self.server.kill()
            self.server.wait()


def line_to(host: Host, home: Path, kind: str, side: str, *arguments: str, **environment: str) -> Line:
    line = Line(home / f"{kind}-{side}")
    command = [*host.enter, sys.executable, PROCESS, kind, side, str(line.path), *arguments]
    return line.run(command, os.environ | environment)


class Redis(Peer):
    name = "redis"

    def __init__(self, two: TwoHosts, home: Path) -> None:
        super().__init__()
        needs("redis", "the redis client")
        if shutil.which("redis-server") is None:
            raise Absent("redis-server is not installed")
        port = free_port()
        server = ["redis-server", "--bind", two.a.ip, "--port", port, "--save", "", "--protected-mode", "no"]
        self.server = subprocess.Popen(
            [*two.a.enter, *server, "--dir", str(home)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.b = line_to(two.b, home, "redis", "b", two.a.ip, port)

    def prepare(self, sizes: tuple[int, ...]) -> None:
        for nbytes in sizes:
            self.b.call("put", nbytes)


class Gloo(Peer):
    name = "gloo"

    def __init__(self, two: TwoHosts, home: Path) -> None:
        super().__init__()
        needs("torch", "torch")
        port = free_port()
        for side, host in (("a", two.a), ("b", two.b)):
            line = line_to(host, home, "gloo", side, two.a.ip, port, GLOO_SOCKET_IFNAME=host.device)
            setattr(self, side, line)


class Mpi(Peer):
    """Two hosts for mpirun too: where they are namespaces, what it takes for ssh enters them."""

    name = "mpi get"

    def __init__(self, two: TwoHosts, home: Path) -> None:
        super().__init__()
        needs("mpi4py", "mpi4py")
        if shutil.which("mpirun") is None:
            raise Absent("mpirun (openmpi-bin) is not installed")
        network = two.a.device if two.a.device == two.b.device else f"{two.a.ip}/24"
        command = [
            *two.a.enter, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2",
            "--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "osc", "pt2pt",
            "--mca", "btl_tcp_if_include", network,
            "--mca", "mpi_yield_when_idle", "1",
        ]  # fmt: skip
        if two.b.enter:
            agent = home / "enter.sh"
            agent.write_text(f'#!/bin/sh\nshift\nexec {" ".join(two.b.enter)} sh -c "$*"\n')
            agent.chmod(0o700)
            command += ["--host", f"{two.a.ip}:1,{two.b.ip}:1", "--mca", "plm_rsh_agent", str(agent),
                        "--mca", "oob_tcp_if_include", network, "--map-by", "node"]  # fmt: skip
        self.a, self.b = Line(home / "mpi-a"), Line(home / "mpi-b")
        self.a.run([*command, sys.executable, PROCESS, "mpi", "a", str(home / "mpi")], os.environ)


class Ray(Peer):
    name = "ray"

    def __init__(self, two: TwoHosts, home: Path) -> None:
        super().__init__()
        needs("ray", "ray")
        if two.b.enter:
            raise Absent("measured on loopback only")
        self.b = line_to(two.b, home, "ray", "b", RAY_DEDUP_LOGS="0")

    def close(self) -> None:
        with contextlib.suppress(Failed):
            self.b.call("stop")
        super().close()


MAKERS: tuple[Callable[[TwoHosts, Path], Peer], ...] = (Redis, Gloo, Mpi, Ray)
NAMES = tuple(str(getattr(maker, "name", "")) for maker in MAKERS)


@contextlib.contextmanager
def peers(
    two: TwoHosts, home: Path, sizes: tuple[int, ...], quick: bool
) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    """Those that run here, started side by side, and why the others do not."""
    started: list[Peer] = []
    absent: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for maker, name in zip(MAKERS, NAMES, strict=True):
            if quick and maker is Ray:
                absent[name] = "it takes a quarter of a minute to start: without --quick"
                continue
            try:
                started.append(maker(two, home))
                stack.callback(started[-1].close)
            except Absent as reason:
                absent[name] = str(reason)
        present = []
        for peer in started:
            try:
                peer.b.call("ready")
                if isinstance(peer, Redis):
                    peer.prepare(sizes)
                for nbytes in sizes:
                    peer.get(nbytes, 2)
                present.append(peer)
            except Failed as reason:
                absent[peer.name] = str(reason).strip().splitlines()[-1]
        yield present, absent
