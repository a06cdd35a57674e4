"""A process of ours on some host that does what it is told: JSON lines over a Unix socket, which network namespaces do
not part. Each order names a function; the answer is its result, or the reason why there is none.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

WATCHDOG = 60.0  # seconds after which a process counts as hung


class Failed(Exception):
    """The function raised, or its process is gone or hung; the text says which."""


def obey(path: str, functions: Mapping[str, Callable[..., Any]]) -> None:
    """The other process: runs orders until there are no more."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        stream = line.makefile("rw")
        for order in stream:
            name, arguments = json.loads(order)
            try:
                answer = {"result": functions[name](*arguments)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


class Line:
    """This side: `call` a function there, or `start` it and `finish` later. The other side connects to `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.settimeout(0.05)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = path.with_suffix(".log")

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> Line:
        """Starts the process that will connect; what it prints goes to a file beside the socket."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _connected(self) -> socket.socket:
        end = time.monotonic() + WATCHDOG
        while self._socket is None:
            with contextlib.suppress(TimeoutError):
                self._socket, _ = self._listener.accept()
                self._stream = self._socket.makefile("rw")
                self._listener.close()
                break
            if time.monotonic() > end or (self._process and self._process.poll() is not None):
                raise Failed(f"a process did not start: {self.said()}")
        return self._socket

    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-2000:].strip() if self._log.exists() else ""

    def start(self, name: str, *arguments: Any) -> None:
        self._connected()
        try:
            self._stream.write(json.dumps([name, arguments]) + "\n")
            self._stream.flush()
        except OSError as error:
            raise Failed(f"the process for {name}() is gone: {self.said()}") from error

    def finish(self, timeout: float = WATCHDOG) -> Any:
        self._connected().settimeout(timeout)
        try:
            answer = self._stream.readline()
        except TimeoutError as error:
            raise Failed(f"no answer in {timeout} s") from error
        except OSError:
            answer = ""
        if not answer:
            raise Failed(f"the process is gone: {self.said()}")
        found = json.loads(answer)
        if "error" in found:
            raise Failed(found["error"])
        return found["result"]

    def call(self, name: str, *arguments: Any) -> Any:
        self.start(name, *arguments)
        return self.finish()

    def close(self) -> None:
        """Hangs up, which ends the process."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._socket.close()
        self._listener.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5 if self._socket is not None else 0)
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
