"""A contender of bench/offload.py: a process of its own, forked from one that has the libraries.

Those take long to import, so that is done once, and not here.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE_S = 60  # for one run


def serve(kind: str, shape: str, folder: Path, count: int, length: int, budget: int, asked: Connection) -> None:
    importlib.import_module("processes.offload").serve(kind, shape, folder, count, length, budget, asked)


class Contender:
    """One process, for `count` texts of `length` tokens."""

    def __init__(self, kind: str, shape: str, folder: Path, count: int, length: int, budget: int = 0) -> None:
        server = multiprocessing.get_context("forkserver")
        here = str(Path(__file__).parents[1])
        if here not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # where the server finds what to preload
            os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        server.set_forkserver_preload(["processes.offload"])
        self._asks, asked = server.Pipe()
        self._process = server.Process(
            target=serve, args=(kind, shape, folder, count, length, budget, asked), daemon=True
        )
        self._process.start()
        asked.close()
        self._asks.recv()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def run(self) -> float:
        """Seconds of one run; endless if it does not answer for long. It is ended then, and has no more runs."""
        if not self.alive:
            return math.inf
        self._asks.send("run")
        if self._asks.poll(PATIENCE_S):
            return float(self._asks.recv())
        self._process.kill()
        self._process.join()
        return math.inf

    def peak(self) -> int:
        return int(self._ask("peak"))

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("facts")
        return found

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself, and said why
            self._asks.send("end")
        self._process.join()

    def _ask(self, question: str) -> Any:
        self._asks.send(question)
        return self._asks.recv()
