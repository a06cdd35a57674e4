"""All that is counted on this host: spaces, their tiers, pools and hosts, as one exposition for Prometheus.

Nothing is made, started or joined for it. What cannot be looked at is left out with the reason.
"""

from __future__ import annotations

import os
from typing import Any

from openshelf.errors import NotPermitted, OpenshelfError
from openshelf.kv import describe, pools
from openshelf.show.metrics import host_metrics, kv_metrics, space_metrics, tier_metrics
from openshelf.space import describe_space, hosts_of, look, spaces, tiers_of

_DESCRIBED = ("free", "largest_free", "metadata_bytes", "arrays")


def figures(hosts: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """`spaces`, `tiers`, `pools` and `hosts`, and what was `left_out`, by names and URLs. `hosts`: the hosts file."""
    found: dict[str, Any] = {"spaces": spaces(), "tiers": tiers_of(), "pools": {}, "hosts": {}, "left_out": {}}
    for space in found["spaces"]:
        name = space.get("url", space["name"])
        space["readable"] = int("error" not in space)
        if "error" in space:
            found["left_out"][name] = space["error"]
            continue
        try:
            if "url" in space:
                found["hosts"][name] = [
                    one | {"answers": one["state"] != "down"} for one in hosts_of(name, hosts=hosts)
                ]
                with look(name, hosts=hosts) as seen:
                    found["pools"][name] = [describe(seen, pool) for pool in pools(seen)]
            else:
                facts, found["pools"][name] = _facts(name)
                space.update({key: facts[key] for key in _DESCRIBED})
        except OpenshelfError as error:
            found["left_out"][name] = str(error)
    return found


def figures_text(found: dict[str, Any]) -> str:
    """The text of an exposition: what figures() found."""
    reasons = (" ".join(f"# left out: {name}: {why}".split()) for name, why in found["left_out"].items())
    texts = (
        space_metrics(found["spaces"]), tier_metrics(found["tiers"]), kv_metrics(found["pools"]),
        host_metrics(found["hosts"]),
    )  # fmt: skip
    return "".join(texts) + "".join(f"{line}\n" for line in reasons)


def _facts(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    try:
        with look(name) as space:
            return space.describe(), [describe(space, pool) for pool in pools(space)]
    except NotPermitted:  # without its keeper the pools of a space with a flash tier cannot be read
        return describe_space(name), []
