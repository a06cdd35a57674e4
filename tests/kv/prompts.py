"""Prompts that are paths down a tree, and KV cache whose bytes tell which block of which prompt they are."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from openshelf import KVPool, Layout, Space, _core
from openshelf.kv import Hit

BLOCK = 4
LAYOUT = Layout("tree", layers=2, heads=2, head_dim=4, dtype="int32")
Path = Sequence[int]


def small_pool(space: Space, blocks: int = 64, **options: Any) -> KVPool:
    """A pool of so many blocks."""
    size = LAYOUT.block_bytes(BLOCK)
    return KVPool(space, LAYOUT, BLOCK, capacity=_core.KVCore.bytes_needed(size, BLOCK, blocks), **options)


def tokens_of(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (np.repeat(np.array(path, np.int64), BLOCK) * 100 + np.tile(np.arange(BLOCK), len(path))).astype(np.int64)


def cache_of(path: Path) -> np.ndarray[Any, np.dtype[np.int32]]:
    """What a model would compute: every block depends on all tokens up to its end."""
    cache = np.empty(LAYOUT.shape(len(path) * BLOCK), np.int32)
    inside = np.arange(cache[:, :, :BLOCK].size, dtype=np.int32).reshape(cache[:, :, :BLOCK].shape)
    for at in range(len(path)):
        code = zlib.crc32(bytes(path[: at + 1])) & 0x3FFFFFFF
        cache[:, :, at * BLOCK : (at + 1) * BLOCK] = code + inside
    return cache


def put(pool: KVPool, path: Path, **options: Any) -> Any:
    return pool.put(tokens_of(path), cache_of(path), **options)


def check_hit(hit: Hit, path: Path) -> int:
    """Blocks of the hit, each of which is compared with what it must be."""
    expected = cache_of(path)
    for at in range(hit.blocks):
        assert np.array_equal(hit.block(at), expected[:, :, at * BLOCK : (at + 1) * BLOCK]), f"wrong block {at}"
    return hit.blocks


def look(pool: KVPool, path: Path) -> int:
    with pool.match(tokens_of(path)) as hit:
        return check_hit(hit, path)


def assert_sound(pool: KVPool) -> None:
    found = pool.check()
    wrong = {name: count for name, count in found.items() if name not in ("blocks", "free") and count}
    assert not wrong, found
    assert found["blocks"] + found["free"] == pool.stats()["capacity_blocks"]
