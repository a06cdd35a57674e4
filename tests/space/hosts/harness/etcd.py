"""A real etcd of three servers for tests, on free ports of loopback or one in each network namespace.

The program is the machine's own, or it is taken out of Debian's package `etcd-server`, without installing it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from openshelf.errors import NoAgreement
from openshelf.membership import Etcd
from tests.processes import PATIENCE
from tests.space.hosts.harness.net import Network

_UNPACKED = Path(tempfile.gettempdir()) / f"openshelf-etcd-{os.getuid()}"


@functools.cache
def program() -> tuple[str, str]:
    """The path of etcd, or an empty one and the reason."""
    if found := shutil.which("etcd"):
        return found, ""
    unpacked = _UNPACKED / "usr" / "bin" / "etcd"
    if unpacked.exists():
        return str(unpacked), ""
    try:
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(
                ["apt-get", "download", "etcd-server"], cwd=place, check=True, capture_output=True, timeout=120
            )
            (package,) = Path(place).glob("*.deb")
            _UNPACKED.mkdir(mode=0o700, exist_ok=True)
            subprocess.run(["dpkg", "-x", package, _UNPACKED], check=True, capture_output=True, timeout=120)
        return str(unpacked), ""
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "", f"needs etcd (Debian's package etcd-server), which is not here and cannot be fetched: {error}"


class Servers:
    """Three of them, one cluster; a context that leaves nothing behind."""

    COUNT = 3

    def __init__(self, ports: list[int], directory: Path, network: Network | None = None) -> None:
        self.directory, self.network = directory, network
        addresses = network.addresses if network else ["127.0.0.1"] * self.COUNT
        self.clients = [f"{addresses[n]}:{ports[2 * n]}" for n in range(self.COUNT)]
        self._peers = [f"{addresses[n]}:{ports[2 * n + 1]}" for n in range(self.COUNT)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(self.COUNT):
            self.start(number)

    def start(self, number: int) -> None:
        """Again with what it had, if it was ended."""
        path, _ = program()
        client, peer = f"http://{self.clients[number]}", f"http://{self._peers[number]}"
        cluster = ",".join(f"s{n}=http://{peer}" for n, peer in enumerate(self._peers))
        command = [
            path, "--name", f"s{number}", "--data-dir", str(self.directory / f"etcd-{number}"), "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster, "--log-level", "error",
            "--heartbeat-interval", "100", "--election-timeout", "1000",
        ]  # fmt: skip
        if self.network:
            command = ["nsenter", f"--net={self.network.path(number)}", *command]
        with (self.directory / f"etcd-{number}.log").open("ab") as log:
            self._running[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number: int, what: signal.Signals) -> None:
        self._running[number].send_signal(what)

    def kill(self, number: int) -> None:
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def await_majority(self) -> None:
        """Until it answers, asked from here; with a network, hosts wait for it themselves."""
        store, deadline = Etcd(self.clients), time.monotonic() + 30 * PATIENCE
        while True:
            try:
                store.read(["/"])
                store.close()
                return
            except NoAgreement:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self._running.values():
            process.wait()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
