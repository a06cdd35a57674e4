"""Max-min fair rates by plain progressive filling, one bottleneck at a time: slow, and plainly right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def fair(capacity: Sequence[float], paths: Sequence[Sequence[int]], caps: Sequence[float]) -> NDArray[np.float64]:
    """All rates rise together; a flow stops at its cap, or when a resource of its path is full."""
    left = np.array(capacity, float)
    uses = np.zeros((len(paths), len(left)))
    for flow, path in enumerate(paths):
        uses[flow, list(path)] = 1.0
    limit, rate = np.array(caps, float), np.zeros(len(paths))
    rising = np.ones(len(paths), bool)
    while rising.any():
        load = uses[rising].sum(axis=0)
        room = np.full(len(left), np.inf)
        room[load > 0] = left[load > 0] / load[load > 0]
        more = min(room.min(), (limit - rate)[rising].min())
        rate[rising] += more
        left -= more * load
        full = left <= 1e-12 * np.array(capacity)
        rising &= ~(uses[:, full].any(axis=1) | (rate >= limit * (1 - 1e-12)))
    return rate
