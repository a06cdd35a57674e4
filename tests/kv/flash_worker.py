"""KV cache larger than memory, whose bytes tell which block of which prompt they are; and workers that are killed."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import KVPool, Layout, Space
from openshelf.kv import Hit

BLOCK = 4
UNITS = Layout("units", layers=2, heads=2, head_dim=2048, dtype="int32")  # blocks of 256 KiB: whole units
SHARED = Layout("shared", layers=2, heads=1, head_dim=320, dtype="int32")  # blocks of 20 KiB: neighbours share units
PROMPT = 1 << 20  # bytes


def flash_of(path: Path, size: str = "256MiB") -> str:
    return f"{path / 'flash'}:{size}"


def tokens_of(prompt: int, layout: Layout = UNITS) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A prompt of 1 MiB."""
    blocks = PROMPT // layout.block_bytes(BLOCK)
    return np.arange(blocks * BLOCK, dtype=np.int64) + prompt * 1_000_000


def cache_of(prompt: int, layout: Layout = UNITS) -> np.ndarray[Any, np.dtype[np.int32]]:
    tokens = tokens_of(prompt, layout)
    cache = np.empty(layout.shape(len(tokens)), np.int32)
    inside = np.arange(cache[:, :, 0].size, dtype=np.int32).reshape(cache[:, :, 0].shape)
    cache[:] = inside[:, :, None] + (tokens.astype(np.int32) * 1009).reshape(1, 1, -1, 1, 1)
    return cache


def put(pool: KVPool, prompt: int, **options: Any) -> Any:
    return pool.put(tokens_of(prompt, pool.layout), cache_of(prompt, pool.layout), **options)


def check_hit(hit: Hit, prompt: int, layout: Layout = UNITS, copy: bool = False) -> int:
    """Blocks of the hit, each of which is compared with what it must be."""
    expected = cache_of(prompt, layout)
    if copy:
        assert np.array_equal(hit.read(), expected[:, :, : hit.length]), f"prompt {prompt}: wrong bytes were copied"
        return hit.blocks
    for at in range(hit.blocks):
        here = hit.block(at)
        assert np.array_equal(here, expected[:, :, at * BLOCK : (at + 1) * BLOCK]), f"prompt {prompt}: block {at}"
    return hit.blocks


def look(pool: KVPool, prompt: int, copy: bool = False) -> int:
    with pool.match(tokens_of(prompt, pool.layout)) as hit:
        return check_hit(hit, prompt, pool.layout, copy)


def check_all(pool: KVPool, prompts: Sequence[int]) -> None:
    """Every byte of every prompt, by views and by copies in turn."""
    for prompt in prompts:
        blocks = len(tokens_of(prompt, pool.layout)) // BLOCK
        assert look(pool, prompt, copy=prompt % 2 == 1) == blocks, f"prompt {prompt} is not all there"


def churn(home: str, seed: int, verdict: str, prompts: int) -> None:
    """For ever: puts prompts and matches them, and compares all it reads. Ends by itself only if that was wrong."""
    os.environ["OPENSHELF_DIR"] = home
    chance = random.Random(seed)
    os.environ["OPENSHELF_FAULTS"] = "off" if chance.random() < 0.3 else "on"
    try:
        with Space.open("flash") as space, KVPool(space, UNITS, BLOCK, verify=True) as pool:
            while True:
                prompt = chance.randrange(prompts)
                if chance.random() < 0.5:
                    put(pool, prompt)
                else:
                    look(pool, prompt, copy=chance.random() < 0.5)
    except BaseException as error:
        with open(verdict, "a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        raise


def put_some(home: str, first: int, count: int) -> int:
    """Another process's prompts."""
    os.environ["OPENSHELF_DIR"] = home
    with Space.open("flash") as space:
        pool = KVPool(space, UNITS, BLOCK)
        return sum(put(pool, prompt).stored for prompt in range(first, first + count))
