"""Workers that share one system prompt: the first computes its KV cache, the others read the same bytes in place."""

import multiprocessing
import os
import time
from typing import Any

import numpy as np

import openshelf as osf

NAME = f"example-{os.getpid()}"
LAYOUT = osf.Layout("toy@1", layers=4, heads=8, head_dim=64, dtype="float16")
SYSTEM = np.arange(512)  # a system prompt of 512 tokens


def compute(tokens: np.ndarray, start: int) -> np.ndarray:
    """What a model would do: slow, and only for the tokens from `start` on."""
    time.sleep(0.0002 * (len(tokens) - start))
    return np.ones(LAYOUT.shape(len(tokens) - start), "float16")


def worker(name: str, number: int, lines: Any) -> None:
    with osf.Space.open(name) as space, osf.KVPool(space, LAYOUT) as pool:
        tokens = np.concatenate([SYSTEM, np.full(64, 1000 + number)])  # and a question of its own
        began = time.perf_counter()
        with pool.match(tokens) as hit:
            first = [hit.layer(layer)[0] for layer in range(LAYOUT.layers)] if hit else []  # views, no copy
            kv = compute(tokens, start=hit.length)
            done = pool.put(tokens, kv, start=hit.length)
            lines.put(
                f"worker {number}: {hit.length} of {len(tokens)} tokens were there ({len(first)} layers read in "
                f"place), {done.stored} blocks stored, {1000 * (time.perf_counter() - began):.0f} ms"
            )


if __name__ == "__main__":
    with osf.Space.create(NAME, dram="64MiB") as space, osf.KVPool(space, LAYOUT) as pool:
        context = multiprocessing.get_context("spawn")
        lines = context.Queue()
        for number in range(3):  # one after another, so that it reads well; they may as well run at once
            process = context.Process(target=worker, args=(NAME, number, lines))
            process.start()
            print(lines.get())
            process.join()
        pool.pin(SYSTEM)
        stats = pool.stats()
        print("blocks in the pool:", stats["blocks"], "for", 3 * 576 // 16, "that were asked for")
    osf.Space.remove(NAME)
