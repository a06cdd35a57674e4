"""Three hosts on loopback that agree in an etcd of one server, each with a process that does what it is told."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from openshelf.errors import NoAgreement
from openshelf.membership import Etcd
from openshelf.show.tour import Line


class OneOfThree:
    """A host: its directory, its address, and its process."""

    def __init__(self, home: Path, number: int, script: str, key: Path) -> None:
        self.directory, self._script, self._key, self._turn = home / f"three-{number}", script, key, 0
        self.directory.mkdir(mode=0o700)
        process = os.getpid()
        self.address = f"127.{1 + process // 250 % 250}.{process % 250}.{1 + number}"
        self.start()

    def start(self) -> None:
        own = {"OPENSHELF_DIR": str(self.directory), "OPENSHELF_HOST": self.address, "OPENSHELF_HOSTS": str(self._key)}
        self._turn += 1
        path = f"{self.directory}-{self._turn}.line"
        command = [sys.executable, self._script, path]
        self.line = Line(Path(path)).run(command, os.environ | own | {"OPENSHELF_LINGER": "2"})

    def kill(self) -> None:
        """All that runs there, at once: its process first, which would start another keeper."""
        while pids := self._processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def _processes(self) -> Sequence[int]:
        wanted, found = f"OPENSHELF_DIR={self.directory}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state != "Z":
                        found.append(int(entry.name))
        return sorted(found, key=lambda pid: pid != self.line.pid)


@contextlib.contextmanager
def three_hosts(home: Path, script: str) -> Iterator[tuple[str, list[OneOfThree]]]:
    """The beginning of the URLs of their spaces, and the hosts. FileNotFoundError without etcd."""
    program = shutil.which("etcd")
    if program is None:
        raise FileNotFoundError("no program etcd is here (Debian's package etcd-server)")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        client, peer = (f"127.0.0.1:{listener.getsockname()[1]}" for listener in (one, two))
    key = home / "key.yaml"
    key.touch(0o600)
    key.write_text(f"key: {secrets.token_hex(32)}\nreserve: 32GiB\n")
    command = [
        program, "--data-dir", str(home / "etcd"), "--listen-client-urls", f"http://{client}",
        "--advertise-client-urls", f"http://{client}", "--listen-peer-urls", f"http://{peer}",
        "--initial-advertise-peer-urls", f"http://{peer}", "--initial-cluster", f"default=http://{peer}",
        "--log-level", "error",
    ]  # fmt: skip
    hosts: list[OneOfThree] = []
    with (home / "etcd.log").open("wb") as log:
        etcd = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await(client)
        hosts += [OneOfThree(home, number, script, key) for number in range(3)]
        yield f"etcd://{client}/", hosts
    finally:
        for host in hosts:
            host.kill()
        etcd.kill()
        etcd.wait()


def _await(client: str) -> None:
    store, deadline = Etcd([client]), time.monotonic() + 20
    while True:
        try:
            store.read(["/"])
            return store.close()
        except NoAgreement:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
