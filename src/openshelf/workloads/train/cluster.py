"""A cluster as a training step sees it: an accelerator, nodes of them, and what joins them.

A node is what one fast link joins (NVLink in a server, a rack of GB200). `collective_s` is the only place that knows
what collectives take: rings in closed form, inside a node, between nodes, or both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openshelf.errors import BadInput
from openshelf.fabric import Fabric
from openshelf.twin.ops import Accelerator, accelerator, accelerators

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
_LARGE = 256 << 20


@dataclass(frozen=True)
class Cluster:
    """`count` accelerators in nodes of `node`; rates are of one accelerator, in one direction."""

    accelerator: Accelerator
    count: int
    node: int
    node_bytes_per_s: float
    net_bytes_per_s: float
    node_latency_s: float = 4e-6
    net_latency_s: float = 1e-5
    host_bytes_per_s: float = 25e9
    host_bytes: float = 250e9
    name: str = ""

    @classmethod
    def of(cls, fabric: Fabric, count: int | None = None) -> Cluster:
        """From a fabric: the accelerator at its endpoints; what a large message takes to the next and to the last."""
        network = fabric.network
        ranks = network.ranks
        if count is not None and count < 1:
            raise BadInput(f"{count} accelerators came; expected 1 or more")
        near, far = (fabric.send(_LARGE, 0, other).seconds for other in (1, ranks - 1))
        size = 1
        while size < ranks and fabric.send(_LARGE, 0, size).seconds < 1.3 * near:
            size += 1
        latency = [fabric.send(1, 0, other).seconds for other in (1, ranks - 1)]
        host = next((link for link in fabric.links if link.name == "host"), None)
        dram = next((place for place in fabric.places if place.tier == "dram"), None)
        return cls(
            _accelerator(fabric), count or ranks, size, _LARGE / near, _LARGE / far, latency[0], latency[1],
            host.bandwidth_bytes_per_s.value if host else 25e9, dram.capacity_bytes.value if dram else 0.0,
            fabric.name,
        )  # fmt: skip


def _accelerator(fabric: Fabric) -> Accelerator:
    """One that the package knows by the name of the fabric's, or one with the fabric's own figures."""
    if not fabric.compute:
        raise BadInput(
            f"fabric {fabric.name!r} has no compute: describe its accelerator under `compute:`, with its gemm"
        )
    compute = next((each for each in fabric.compute if each.name == fabric.endpoint), fabric.compute[0])
    for each in accelerators().values():
        if compute.name in (each.name, *each.aliases):
            return accelerator(each.name)
    rates: dict[str, float] = {each.dtype: each.rate_flop_per_s.value for each in compute.gemm}
    if not rates:
        raise BadInput(
            f"compute {compute.name!r} of fabric {fabric.name!r} is no known accelerator and has no rates: add its "
            f"`gemm`, or give it the name of one of {', '.join(accelerators())}"
        )
    place = next(each for each in fabric.places if each.name == compute.place)
    return Accelerator(
        compute.name, {"bfloat16": max(rates.values()), **rates}, place.read_bandwidth_bytes_per_s.value,
        place.capacity_bytes.value,
    )  # fmt: skip


def collective_s(cluster: Cluster, kind: Kind, nbytes: float, ranks: int, stride: int) -> tuple[float, float]:
    """Seconds inside nodes and between them, of a collective of `nbytes` at each of `ranks`, `stride` apart.

    What is reduced or gathered is `nbytes` in all. As many groups as fit side by side run at once, each with the
    accelerators' own network links.
    """
    if ranks < 2 or nbytes <= 0:
        return 0.0, 0.0
    inside = max(1, min(ranks, cluster.node // stride))
    across = -(-ranks // inside)
    rounds = 2 if kind == "all_reduce" else 1
    if kind == "send":
        if inside > 1:
            return nbytes / cluster.node_bytes_per_s + cluster.node_latency_s, 0.0
        return 0.0, nbytes / cluster.net_bytes_per_s + cluster.net_latency_s
    if kind == "all_to_all":
        near, far = (inside - 1) / ranks * nbytes, (ranks - inside) / ranks * nbytes
        within = near / cluster.node_bytes_per_s + (cluster.node_latency_s if inside > 1 else 0)
        return within, far / cluster.net_bytes_per_s + (cluster.net_latency_s if across > 1 else 0)
    near = rounds * (inside - 1) * (nbytes / inside / cluster.node_bytes_per_s + cluster.node_latency_s)
    far = rounds * (across - 1) * (nbytes / inside / across / cluster.net_bytes_per_s + cluster.net_latency_s)
    return near, far
