"""What the benchmarks' peers share: a server of theirs, started and ended, or the reason why one is absent."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path


class Absent(Exception):
    """The peer cannot run here, and why."""


def needs(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Absent(f"{what} is not installed")


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def listens(port: str) -> Callable[[], bool]:
    """Does somebody answer there by now?"""

    def probe() -> bool:
        with socket.socket() as near:
            return near.connect_ex(("127.0.0.1", int(port))) == 0

    return probe


class Server:
    """A server process of ours, ended by its pid. `ready` is asked until it is true; servers may start side by side."""

    def __init__(
        self, command: list[str], ready: Callable[[], bool], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        if shutil.which(command[0]) is None:
            raise Absent(f"{Path(command[0]).name} is not installed")
        self.ready, self.log = ready, log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}
            )

    def wait(self, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise Absent(f"{self.log.stem} did not start: {' '.join(last)}")
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
