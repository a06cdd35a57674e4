"""Counts as Prometheus reads them. Names follow vLLM's and LMCache's, so that dashboards need a new prefix only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_PREFIX = "openshelf:"
# name, type, help, what of KVPool.stats() it is; tokens are blocks times the tokens of one
_POOL = (
    ("prefix_cache_queries_total", "counter", "Tokens that were looked up.", "queried_blocks", True),
    ("prefix_cache_hits_total", "counter", "Tokens that were found.", "hit_blocks", True),
    ("num_lookup_requests_total", "counter", "Look-ups.", "queries", False),
    ("num_stored_tokens_total", "counter", "Tokens that were stored.", "stored_blocks", True),
    ("num_fetched_tokens_total", "counter", "Tokens of them that came from other hosts.", "fetched_blocks", True),
    ("num_evicted_tokens_total", "counter", "Tokens that made room for others.", "evicted_blocks", True),
    ("num_expired_tokens_total", "counter", "Tokens whose time was over.", "expired_blocks", True),
    ("num_declined_tokens_total", "counter", "Tokens that found no room: all was in use.", "declined_blocks", True),
    ("kv_cache_blocks", "gauge", "Blocks in the pool.", "blocks", False),
    ("kv_cache_dram_blocks", "gauge", "Blocks of these that are in memory.", "dram_blocks", False),
    ("kv_cache_flash_blocks", "gauge", "Blocks of these that are on flash.", "flash_blocks", False),
    ("kv_cache_capacity_blocks", "gauge", "Blocks that it has room for.", "capacity_blocks", False),
)


def kv_metrics(space: str, pools: Iterable[Mapping[str, Any]]) -> str:
    """The text of an exposition: what openshelf.kv.describe says of each pool of a space."""
    described = list(pools)
    lines: list[str] = []
    for name, kind, text, key, in_tokens in _POOL:
        lines += _head(name, kind, text)
        for pool in described:
            value = int(pool[key]) * (int(pool["block_tokens"]) if in_tokens else 1)
            lines.append(_line(name, {"space": space, "pool": pool["pool"]}, value))
    lines += _head("kv_cache_usage_perc", "gauge", "Share of the pool that is in use, 0 to 1.")
    for pool in described:
        share = int(pool["blocks"]) / max(1, int(pool["capacity_blocks"]))
        lines.append(_line("kv_cache_usage_perc", {"space": space, "pool": pool["pool"]}, share))
    lines += _head("kv_tenant_blocks", "gauge", "Blocks of a tenant.")
    for pool in described:
        for tenant, facts in pool["tenants"].items():
            labels = {"space": space, "pool": pool["pool"], "tenant": tenant}
            lines.append(_line("kv_tenant_blocks", labels, facts["blocks"]))
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}"]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{_PREFIX}{name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
