"""Ids of recommenders: as at Meta, by Zipf's law, and evenly spread.

Meta published how often rows are read again within a batch (facebookresearch/dlrm_datasets, MIT licence,
embedding_bag/2021/locality_stats.txt, batch fbgemm_t856_bs65536), not in which order. A row's number of uses is drawn
from that histogram, and the uses of all rows are shuffled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int64]]

_READ_A_BAG = 887_017_990 / 856 / 65_536  # ids of one table in one sample
_USES_ABOVE = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_SHARES = (
    0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.05, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023,
    0.019,
)  # fmt: skip


def like_meta(rows: int, count: int, seed: int) -> Ids:
    """Ids of one table from a batch of 65,536 samples: more than `count` are drawn, and the first of them taken."""
    chance = np.random.default_rng(seed)
    lookups = max(count, int(65_536 * _READ_A_BAG))
    parts = []
    for low, high, share in zip(_USES_ABOVE, _USES_ABOVE[1:], np.array(_SHARES) / sum(_SHARES), strict=False):
        wanted = round(lookups * share)
        drawn = np.exp(chance.uniform(np.log(low + 1), np.log(high + 1), wanted // (low + 1) + 1)).astype(int)
        so_far = np.cumsum(np.clip(drawn, low + 1, high)).clip(max=wanted)  # the last row has what is left
        parts.append(np.diff(so_far[: np.searchsorted(so_far, wanted) + 1], prepend=0))
    uses = np.concatenate(parts)
    ids = np.repeat(np.arange(len(uses)), uses)
    chance.shuffle(ids)
    where = chance.choice(rows, len(uses), replace=False)
    return np.asarray(where[ids[:count]], np.int64)


def zipf(rows: int, count: int, seed: int, exponent: float = 1.05) -> Ids:
    """The k-th most popular row is read in proportion to k ** -exponent; popular rows lie anywhere."""
    chance = np.random.default_rng(seed)
    weights = np.cumsum(np.arange(1, rows + 1, dtype=float) ** -exponent)
    ranks = np.searchsorted(weights, chance.random(count) * weights[-1])
    return np.asarray(ranks * 0x9E3779B1 % rows, np.int64)  # an odd factor: neighbours in rank are far apart


def uniform(rows: int, count: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(0, rows, count)


KINDS: dict[str, Callable[[int, int, int], Ids]] = {"meta": like_meta, "zipf": zipf, "uniform": uniform}
