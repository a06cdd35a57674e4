"""Changes rows of the table 't' of a space all the time, on the first core, until its standard input ends."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openshelf import Space, Table
from traffic.recsys_ids import like_meta

COUNT, BATCHES = 4096, 4


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with Space.open(sys.argv[1]) as space:
        table = Table.open(space, "t")
        ids = [like_meta(table.rows, COUNT, 100 + seed) for seed in range(BATCHES)]
        gradients = np.full((COUNT, table.dim), 1e-6, np.float32)
        print("ready", flush=True)
        at = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            table.update(ids[at % BATCHES], gradients, threads=1)
            at += 1
        print(at * COUNT, flush=True)


if __name__ == "__main__":
    main()
