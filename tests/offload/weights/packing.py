"""What the tests of packed files share: weights that are easy to tell apart, and ways to read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from openshelf import _core
from openshelf.offload.weights.packed import Packed


def weights(seed: int = 0, sizes: tuple[int, ...] = (3, 1024, 5000, 300_000)) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {f"layer.{at}.weight": random.random(size, np.float32) for at, size in enumerate(sizes)}


def content(packed: Packed) -> dict[str, bytes]:
    """Of each tensor, read from the file by plain reads."""
    found = {}
    with open(packed.path, "rb") as file:
        for name in packed.tensors:
            there = packed.storage_of(name)
            file.seek(there.at)
            found[name] = file.read(there.nbytes)
    return found


def read_through(packed: Packed, name: str) -> bytes:
    """As a run reads it: direct and checked."""
    there = packed.storage_of(name)
    arena = _core.DeviceArena(max(4096, -(-there.nbytes // 4096) * 4096))
    streamer = _core.Streamer(arena, arena.address, arena.nbytes)
    streamer.read(packed.file, there.at, 0, there.nbytes, name, there.check).wait()
    return bytes(memoryview(arena.range(0, there.nbytes, None)))
