"""All that is counted on this host: spaces, their tiers, pools, tables and hosts, as one exposition for Prometheus.

Nothing is made, started or joined for it. What cannot be looked at is left out with the reason.
"""

from __future__ import annotations

import os
from typing import Any

from openshelf.errors import NotPermitted, OpenshelfError
from openshelf.kv import describe, pools
from openshelf.show.metrics import host_metrics, kv_metrics, space_metrics, table_metrics, tier_metrics
from openshelf.space import Space, describe_space, hosts_of, look, spaces, tiers_of
from openshelf.tables import describe as describe_table
from openshelf.tables import tables

_DESCRIBED = ("free", "largest_free", "metadata_bytes", "arrays")


def figures(hosts: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """`spaces`, `tiers`, `pools`, `tables`, `hosts`, and what was `left_out`, by names. `hosts`: their file."""
    found: dict[str, Any] = {"spaces": spaces(), "tiers": tiers_of()}
    found |= {"pools": {}, "tables": {}, "hosts": {}, "left_out": {}}
    for space in found["spaces"]:
        name = space.get("url", space["name"])
        space["readable"] = int("error" not in space)
        if "error" in space:
            found["left_out"][name] = space["error"]
            continue
        try:
            if "url" in space:
                found["hosts"][name] = [_answering(one) for one in hosts_of(name, hosts=hosts)]
                with look(name, hosts=hosts) as seen:
                    _look_into(seen, name, found)
            else:
                facts = _facts(name, found)
                space.update({key: facts[key] for key in _DESCRIBED})
        except OpenshelfError as error:
            found["left_out"][name] = str(error)
    return found


def _answering(one: dict[str, Any]) -> dict[str, Any]:
    """With whether it answers other hosts. Without its keeper this host's part can be read, but has no counts."""
    answers = one["state"] != "down" and not (one["own"] and one["misses"] is None)
    return one | {"answers": answers, "up": one["up"] and answers}


def figures_text(found: dict[str, Any]) -> str:
    """The text of an exposition: what figures() found."""
    reasons = (" ".join(f"# left out: {name}: {why}".split()) for name, why in found["left_out"].items())
    texts = (
        space_metrics(found["spaces"]), tier_metrics(found["tiers"]), kv_metrics(found["pools"]),
        table_metrics(found["tables"]), host_metrics(found["hosts"]),
    )  # fmt: skip
    return "".join(texts) + "".join(f"{line}\n" for line in reasons)


def troubles(found: dict[str, Any]) -> list[str]:
    """What is wrong on this host, of what figures() found: spaces that cannot be read, and keepers that do not run.

    That another host does not answer is none of this host's troubles.
    """
    damaged = [f"{one.get('url', one['name'])}: {one['error']}" for one in found["spaces"] if "error" in one]
    missing = [
        f"{url}: the keeper of this host, {one['host']}, does not answer"
        for url, hosts in found["hosts"].items()
        for one in hosts
        if one["own"] and not one["answers"]
    ]
    return [" ".join(line.split()) for line in damaged + missing]


def _facts(name: str, found: dict[str, Any]) -> dict[str, Any]:
    try:
        with look(name) as space:
            _look_into(space, name, found)
            return space.describe()
    except NotPermitted:  # without its keeper the pools of a space with a flash tier cannot be read
        found["pools"][name], found["tables"][name] = [], []
        return describe_space(name)


def _look_into(space: Space, name: str, found: dict[str, Any]) -> None:
    """Its pools and its tables. A table that is damaged, or was deleted just now, does not hide the others."""
    found["pools"][name] = [describe(space, pool) for pool in pools(space)]
    found["tables"][name] = []
    for table in tables(space):
        try:
            found["tables"][name].append(describe_table(space, table))
        except OpenshelfError as error:
            found["left_out"][f"{name}, table {table!r}"] = str(error)
