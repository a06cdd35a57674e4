"""Processes of the tour: each computes with one thread, and leaves Ctrl-C to the process that started it.

On a busy machine threads of one matrix product wait for each other longer than they compute, and what is compared would
be that. A process that heard Ctrl-C would say where it was just then.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # a user's own choice is kept


@contextlib.contextmanager
def calm() -> Iterator[None]:
    """Processes that are started in this block compute with one thread, and have no Ctrl-C, from the very beginning."""
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which a new process inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name in unset:
            del os.environ[name]


def start(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A process that runs target(*arguments, pipe), and the other end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    resource_tracker.ensure_running()  # when it begins it lets Ctrl-C through again, also what calm() held back
    with calm():
        process.start()
    theirs.close()
    return process, ours


def result_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function says in a process of its own."""
    process, pipe = start(_tell, function, arguments)
    try:
        return pipe.recv()
    finally:
        process.kill()
        process.join()


def _tell(function: Callable[..., Any], arguments: tuple[Any, ...], pipe: Connection) -> None:
    pipe.send(function(*arguments))
