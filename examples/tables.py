"""A trainer and a server share one embedding table: what the trainer learns, the server reads at once, in place."""

import multiprocessing
import os
from typing import Any

import numpy as np

import openshelf as osf
from openshelf.tables import RowwiseAdagrad, Uniform

NAME = f"example-{os.getpid()}"
ROWS, DIM = 10_000, 32


def trainer(name: str, done: Any) -> None:
    """Pulls the rows of some users towards one."""
    with osf.Space.open(name) as space:
        table = osf.Table.open(space, "users")
        chance = np.random.default_rng(0)
        for _ in range(300):
            ids = chance.integers(0, 100, 256)
            table.update(ids, table.lookup(ids) - 1.0)
        done.send(table.stat()["updated_rows"])


def main() -> None:
    space = osf.Space.create(NAME, dram="32MiB")
    optimizer = RowwiseAdagrad(lr=0.1)
    table = osf.Table.create(space, "users", rows=ROWS, dim=DIM, init=Uniform(-0.1, 0.1, seed=1), optimizer=optimizer)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=trainer, args=(NAME, there))
    process.start()
    updated = here.recv()
    process.join()
    bags = table.bag(np.arange(200), offsets=[0, 100], mode="mean", consistent=True)
    trained, others = bags.mean(1)
    print(f"{updated:,} rows were updated; the mean of trained rows is {trained:.2f}, of others {others:.2f}")
    osf.Space.remove(NAME)


if __name__ == "__main__":
    main()
