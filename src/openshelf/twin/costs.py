"""What flows cost beside the wires: one `Semantics` for all, or a function that knows sizes and endpoints.

A function (`Fabric.semantics`) is asked once for each different kind of way: same bytes, same roles, same latency.
Where an endpoint on the way sends a message on, it takes it in whole first, and sends it as any other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from openshelf.fabric import Ids, Network, Semantics, Values

Costs = Semantics | Callable[[int, int, int], Semantics]
"""Or: (bytes, source, target) to Semantics."""


def latencies(network: Network, path_at: Ids, path: Ids) -> Values:
    """The latency of each path."""
    total = np.concatenate([[0.0], np.cumsum(network.latency_s[path])])
    return np.asarray(total[path_at[1:]] - total[path_at[:-1]])


def priced(
    costs: Costs, network: Network, src: Ids, dst: Ids, size: Values, path_at: Ids, path: Ids
) -> tuple[Values, Values, Values]:
    """For each flow: seconds before its first byte (with latency, where flows cut through), wire bytes, rate cap."""
    latency = latencies(network, path_at, path)
    own = np.zeros(len(src)) if network.whole_messages else latency
    relayed = np.zeros(len(src)) if network.whole_messages else network.relay_s_per_byte(path_at, path)
    if isinstance(costs, Semantics):
        caps = np.full(len(src), costs.rate_cap_bytes_per_s)
        wire = costs.wire_bytes(size)
        return costs.before_s(size) + own + relayed * wire + (relayed > 0) * costs.overhead_s, wire, caps
    before, wire, caps = np.zeros(len(src)), np.zeros(len(src)), np.full(len(src), np.inf)
    some = np.diff(path_at) > 0
    if not some.any():
        return before, wire, caps
    roles = np.zeros(len(src), np.int64)
    roles[some] = np.bitwise_or.reduceat(np.left_shift(1, network.role[path].astype(np.int64)), path_at[:-1][some])
    alike = np.stack([size, roles.astype(np.float64), np.round(latency, 15)])
    _, first, which = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    for kind, sample in enumerate(first.tolist()):
        same = which.ravel() == kind
        if some[sample]:
            spoken = costs(int(size[sample]), int(src[sample]), int(dst[sample]))
            before[same], wire[same] = spoken.before_s(size[same]), spoken.wire_bytes(size[same])
            caps[same] = spoken.rate_cap_bytes_per_s
    return before + own + relayed * wire, wire, caps
