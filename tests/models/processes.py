"""Each model in a process of its own, forked from one that has imported torch and transformers, with a time limit."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

from openshelf import offload
from tests.models.outcomes import Outcome, outcome

HANGS = 10  # times the limit of processor time: on a busy machine it takes longer
Row = tuple[str, str]  # a kind of use, a model


def _child(pipe: Any, row: Row, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with tempfile.TemporaryDirectory(prefix="openshelf-models-") as folder:
        os.environ["OPENSHELF_CACHE"] = folder
        pipe.send(outcome(*row))


def outcomes(rows: Iterable[Row], seconds: float, at_once: int = 1) -> Iterator[tuple[Row, Outcome]]:
    """What becomes of each, as they end. One that dies or takes too long is `raw`.

    `seconds` are of processor time.
    """
    for name in offload.__all__:
        getattr(offload, name)  # imports what it needs, once for all of them
    fork, left = multiprocessing.get_context("fork"), list(rows)[::-1]
    running: dict[Any, tuple[Row, multiprocessing.process.BaseProcess, float]] = {}  # by their pipes
    try:
        while left or running:
            while left and len(running) < at_once:
                row = left.pop()
                ours, theirs = fork.Pipe(duplex=False)
                process = fork.Process(target=_child, args=(theirs, row, int(seconds)))
                process.start()
                theirs.close()
                running[ours] = (row, process, time.monotonic() + HANGS * seconds)
            first = min(end for _, _, end in running.values())
            ready = multiprocessing.connection.wait(list(running), max(first - time.monotonic(), 0))
            late = [pipe for pipe, (_, _, end) in running.items() if pipe not in ready and end <= time.monotonic()]
            for pipe in [*ready, *late]:
                row, ended, _ = running.pop(pipe)
                yield row, _ended(pipe, ended, seconds, pipe in late)
    finally:
        for _, left_over, _ in running.values():
            left_over.kill()


def _ended(
    pipe: Any,
    process: multiprocessing.process.BaseProcess,
    seconds: float,
    late: bool,
) -> Outcome:
    if late:
        process.kill()
    try:
        found: Outcome = pipe.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        died = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return Outcome("raw", f"it hangs: {HANGS * seconds:g} s were over" if late else f"its process {died}")
    finally:
        pipe.close()
    process.join()
    return found
