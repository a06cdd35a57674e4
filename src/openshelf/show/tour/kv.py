"""Chapter three: four workers, one system prompt. One computes it, the others read it; nobody minds a kill."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from openshelf.kv import KVPool, Layout
from openshelf.show.times import format_time
from openshelf.show.tour.model import HEAD_DIM, HEADS, LAYERS, VOCABULARY, Model
from openshelf.show.tour.workers import start
from openshelf.space import Space, format_size

WORKERS = 4
SYSTEM, QUESTION = 1536, 24  # tokens
WIDTH = 16  # of the longest bar
LAYOUT = Layout("tour", layers=LAYERS, heads=HEADS, head_dim=HEAD_DIM, dtype="float32")


def _prompt(number: int) -> Any:
    """The system prompt and a question of its own."""
    system = np.random.default_rng(1).integers(0, VOCABULARY, SYSTEM)
    return np.concatenate([system, np.random.default_rng(100 + number).integers(0, VOCABULARY, QUESTION)])


def _answer(model: Model, pool: KVPool | None, number: int) -> dict[str, Any]:
    """One request, with or without the pool."""
    tokens = _prompt(number)
    started = time.perf_counter()
    if pool is None:
        logits, _ = model.run(tokens, [np.empty((2, 0, HEADS, HEAD_DIM), np.float32)] * LAYERS)
        found = 0
    else:
        with pool.match(tokens[:-1]) as hit:  # the last token is for the model to go on from
            found = hit.length
            logits, fresh = model.run(tokens[found:], [hit.read_layer(layer) for layer in range(LAYERS)])
            pool.put(tokens, fresh, start=found)
    return {"s": time.perf_counter() - started, "found": found, "next": logits.tolist()}


def _worker(name: str, pipe: Connection) -> None:
    model = Model()
    _answer(model, None, 0)  # the first one of a process is slower
    with Space.open(name) as space, KVPool(space, LAYOUT) as pool:
        pipe.send(None)
        while True:
            number, pooled = pipe.recv()
            pipe.send(_answer(model, pool if pooled else None, number))


class _Worker:
    """A process with a model of its own."""

    def __init__(self, name: str) -> None:
        self._process, self._pipe = start(_worker, name)

    def ready(self) -> _Worker:
        self._pipe.recv()
        return self

    def ask(self, number: int, pooled: bool = True) -> Any:
        self._pipe.send((number, pooled))
        return self._pipe.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def kv_chapter(console: Console) -> dict[str, Any]:
    console.rule("[bold]Four workers, one system prompt")
    name = f"tour-kv-{os.getpid()}"
    workers: list[_Worker] = []
    made = Space.create(name, dram="64MiB")
    try:
        with made as space, KVPool(space, LAYOUT) as pool, console.status("four workers answer questions"):
            workers = [_Worker(name) for _ in range(WORKERS)]
            for worker in workers:
                worker.ready()
            rows = [(f"worker {n + 1}", worker.ask(n)) for n, worker in enumerate(workers)]
            alone = [worker.ask(n, pooled=False) for n, worker in enumerate(workers)]
            workers[0].kill()
            workers.append(_Worker(name).ready())
            rows.append(("1 after kill -9", workers[-1].ask(0)))
            stats, wrong = pool.stats(), pool.check()
    finally:
        for worker in workers:
            worker.kill()
        Space.remove(name)

    distance = max(
        float(np.abs(np.subtract(row["next"], alone[at % WORKERS]["next"])).max()) for at, (_, row) in enumerate(rows)
    )
    equal = all(
        int(np.argmax(row["next"])) == int(np.argmax(alone[at % WORKERS]["next"])) for at, (_, row) in enumerate(rows)
    )
    console.print(_drawn(rows, min(one["s"] for one in alone)))
    size = stats["blocks"] * stats["block_bytes"]
    console.print(
        f"The pool holds {stats['blocks']} blocks of {stats['block_tokens']} tokens, {format_size(size)}: one copy for "
        f"all. {'Every answer is' if equal else 'NOT EVERY ANSWER IS'} the one that is computed without it (logits "
        f"differ by {distance:.1g})."
    )
    return {
        "system_tokens": SYSTEM,
        "requests": [{"what": what, "s": row["s"], "tokens_found": row["found"]} for what, row in rows],
        "alone_s": [one["s"] for one in alone],
        "answers_equal": equal,
        "pool": {key: stats[key] for key in ("blocks", "block_tokens", "block_bytes")},
        "check": wrong,
    }


def _drawn(rows: list[tuple[str, Any]], alone_s: float) -> Table:
    title = f"Tokens: {SYSTEM:,} of the system prompt, {QUESTION} of a question. Measured now on this machine"
    table = Table(title=title, title_justify="left")
    for column in ("", "found", "computed", "first token", "", ""):
        table.add_column(column, justify="right" if column else "left")
    longest = max(alone_s, *(row["s"] for _, row in rows))

    def add(what: str, found: int, seconds: float) -> None:
        bar = "█" * round(WIDTH * seconds / longest) or "▏"
        computed = f"{SYSTEM + QUESTION - found:,}"
        table.add_row(what, f"{found:,}", computed, format_time(seconds), bar, f"{alone_s / seconds:.2g}x")

    add("without the pool", 0, alone_s)
    for what, row in rows:
        add(what, row["found"], row["s"])
    return table
