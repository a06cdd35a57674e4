"""What is in the pools of a space, without a layout: for people and for metrics."""

from __future__ import annotations

from typing import Any

from openshelf import _core
from openshelf.errors import UnknownName
from openshelf.kv.open import core_of
from openshelf.space import Space, array_name


def pools(space: Space) -> list[str]:
    """The names of the pools in this space, on this host."""
    return sorted(name for name, _, _, _, kind, _, _ in core_of(space).list("") if kind == _core.Kind.POOL)


def describe(space: Space, name: str = "kv") -> dict[str, Any]:
    """As KVPool.stats(), with the pool's name. Counts are since the pool was made, by everybody."""
    pool = _core.KVCore.open(core_of(space), array_name("", name))
    if pool is None:
        there = ", ".join(repr(one) for one in pools(space)) or "none"
        raise UnknownName(f"there is no pool {name!r} in this space; there is: {there}")
    return {"pool": name, **facts_of(pool)}


def facts_of(pool: _core.KVCore) -> dict[str, Any]:
    """Capacity and use in blocks, what was done so far, and what each tenant has of it."""
    tenants = {tenant: {"quota_blocks": quota, "blocks": used} for tenant, quota, used in pool.tenants()}
    return {**pool.stats(), "tenants": tenants}
