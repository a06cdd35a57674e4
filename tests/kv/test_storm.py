"""Ten times as much as fits, by several processes at once: no error, no stall, nothing wrong."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space
from tests.kv.prompts import BLOCK, LAYOUT, assert_sound, cache_of, look, put, small_pool, tokens_of
from tests.processes import Peer, State

BLOCKS = 500
LONGEST_S = 0.1


def storm(state: State, seed: int, blocks: int) -> tuple[int, float]:
    """Puts so many blocks; how many were declined, and the longest time of one put, less what the scheduler took."""
    chance = np.random.default_rng(seed)
    declined, longest, done = 0, 0.0, 0
    with Space.open("storm") as space, KVPool(space, LAYOUT, BLOCK) as pool:
        while done < blocks:
            path = [seed, *chance.integers(0, 200, 1 + chance.integers(0, 30)).tolist()]
            cache, tokens = cache_of(path), tokens_of(path)
            start, waited = time.perf_counter(), _waited()
            declined += pool.put(tokens, cache).declined
            longest = max(longest, time.perf_counter() - start - (_waited() - waited))
            done += len(path)
            with pool.match(tokens) as hit:
                if hit.blocks:
                    assert np.array_equal(hit.block(0), cache[:, :, :BLOCK])
    return declined, longest


def _waited() -> float:
    """Seconds that this process was ready and had no processor."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


@pytest.mark.serial
def test_a_storm_of_ten_times_the_pool_is_neither_error_nor_stall(home: Path) -> None:
    with Space.create("storm", "64MiB") as space, small_pool(space, BLOCKS) as pool:
        with Peer() as one, Peer() as two:
            one.start(storm, 1, 5 * BLOCKS)
            two.start(storm, 2, 5 * BLOCKS)
            results = [one.finish(), two.finish()]
        stats = pool.stats()
        assert stats["stored_blocks"] >= 9 * BLOCKS
        assert stats["evicted_blocks"] >= 8 * BLOCKS
        for declined, longest in results:
            assert declined == 0
            assert longest < LONGEST_S
        assert_sound(pool)


def test_a_full_pool_of_held_blocks_declines_at_once(home: Path) -> None:
    with Space.create("storm", "64MiB") as space, small_pool(space, 32) as pool:
        capacity = pool.stats()["capacity_blocks"]
        put(pool, [1] * capacity)
        with pool.match(tokens_of([1] * capacity)) as hit:
            assert hit.blocks == capacity
            start = time.perf_counter()
            for number in range(20):
                assert put(pool, [2, number]).declined == 2
            assert time.perf_counter() - start < 1
        assert put(pool, [2, 1]).stored == 2
        assert look(pool, [1] * capacity) == capacity - 2
        assert_sound(pool)


def test_blocks_of_megabytes(home: Path) -> None:
    layout = Layout("llama", layers=32, heads=8, head_dim=128, dtype="float16")
    with Space.create("storm", "160MiB") as space, KVPool(space, layout) as pool:
        assert pool.stats()["capacity_blocks"] == 71
        tokens = np.arange(64 * 16)
        cache = np.random.default_rng(1).integers(0, 1 << 15, layout.shape(len(tokens))).astype("int16").view("float16")
        assert pool.put(tokens, cache).stored == 64
        with pool.match(tokens) as hit:
            out: Any = hit.read()
            assert np.array_equal(out.view("int16"), cache.view("int16"))
            assert np.array_equal(hit.block(5).view("int16"), cache[:, :, 80:96].view("int16"))
        assert pool.put(tokens + 1, cache).stored == 64
