"""The traces of bench/tiers_policy.py: units in the order of their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from traffic import kv_replays

UNITS = 16_384
Units: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]


@dataclass
class Case:
    id: str
    what: str
    units: int
    room: int
    trace: Units


def zipf_ranks(units: int, length: int, seed: int) -> Units:
    """Zipf(1.0): rank r is used in proportion to 1 / (r + 1)."""
    weights = np.cumsum(1.0 / np.arange(1, units + 1))
    points = np.random.default_rng(seed).random(length) * weights[-1]
    ranks: Units = np.searchsorted(weights, points).astype(np.uint32)
    return ranks


def zipf(length: int, units: int = UNITS, seed: int = 1) -> Case:
    places = np.random.default_rng(seed + 1).permutation(units).astype(np.uint32)
    return Case("zipf", "Zipf(1.0)", units, units // 4, places[zipf_ranks(units, length, seed)])


def scan(length: int, units: int = UNITS, share: float = 0.4, seed: int = 1) -> Case:
    """Zipf, interrupted by scans over the three quarters that are used least; each goes on where the last one ended."""
    run = units // 8
    hot, cold = zipf_ranks(units, length, seed), np.arange(units // 4, units, dtype=np.uint32)
    pieces: list[Units] = []
    between, at, scanned, total = int(run * (1 - share) / share), 0, 0, 0
    while total < length:
        pieces.append(hot[at : at + between])
        pieces.append(np.take(cold, range(scanned, scanned + run), mode="wrap"))
        at, scanned, total = at + between, scanned + run, total + between + run
    return Case("scan", f"Zipf(1.0), {share:.0%} in scans", units, units // 4, np.concatenate(pieces)[:length])


def loop(length: int, units: int = UNITS) -> Case:
    room = units // 4
    around = room + room // 10
    return Case("loop", "a loop of 1.1 x memory", units, room, np.arange(length, dtype=np.uint32) % around)


def mooncake(percent: int) -> Case | None:
    """Mooncake's conversation trace (Qin et al., FAST 2025), a unit for each block; None where the file is missing."""
    if not kv_replays.PATH.exists():
        return None
    requests, _ = kv_replays.load()
    blocks, trace = np.unique(np.concatenate([np.array(r, np.uint32) for r in requests]), return_inverse=True)
    units = len(blocks)
    case = f"Mooncake conversations, {percent} % of the blocks"
    return Case(f"mooncake{percent}", case, units, units * percent // 100, trace.astype(np.uint32))
