"""How much of each kind of resource was used: by role, for a large network has millions of resources, few roles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from openshelf.fabric import Network, Values


@dataclass(frozen=True)
class Load:
    """Bytes over all resources of a role, and the part of their capacity that this is: on average, and at the most."""

    role: str
    nbytes: float
    mean: float
    most: float

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def load_of(network: Network, carried: Values, seconds: float) -> tuple[Load, ...]:
    """The load of every role, from the bytes that each resource carried in so many seconds."""
    made = []
    for number, role in enumerate(network.roles):
        own = network.role == number
        part = carried[own] / (network.capacity_bytes_per_s[own] * seconds) if seconds else np.zeros(int(own.sum()))
        made.append(Load(role, float(carried[own].sum()), float(part.mean()), float(part.max())))
    return tuple(made)
