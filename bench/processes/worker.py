"""A worker of a benchmark in a process of its own, whose methods are called from here."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any


def _work(pipe: Any, make: Callable[..., Any], given: tuple[Any, ...]) -> None:
    worker = make(*given)
    pipe.send(None)
    while True:
        name, arguments = pipe.recv()
        if name is None:
            return
        pipe.send(getattr(worker, name)(*arguments))


class Process:
    """What make(*given) returns, elsewhere; the first `finish` waits until it is made. `preload`: modules that take
    seconds to import, which is done once for all processes."""

    def __init__(self, make: Callable[..., Any], *given: Any, preload: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there, make, given), daemon=True)
        self.process.start()
        there.close()

    def start(self, name: str | None, *given: Any) -> None:
        self.pipe.send((name, given))

    def finish(self) -> Any:
        return self.pipe.recv()

    def call(self, name: str, *given: Any) -> Any:
        self.start(name, *given)
        return self.finish()

    def kill(self) -> None:
        assert self.process.pid
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def stop(self) -> None:
        self.start(None)
        self.process.join()
