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
# name, type, help, what of tiers_of() it is
_TIERS = (
    ("tier_capacity_bytes", "gauge", "Bytes that the space can hold.", "capacity"),
    ("tier_dram_budget_bytes", "gauge", "Bytes that may be in dram at a time.", "dram_budget"),
    ("tier_dram_bytes", "gauge", "Bytes in dram.", "dram_bytes"),
    ("tier_pinned_bytes", "gauge", "Of these, pinned.", "pinned_bytes"),
    ("tier_dirty_bytes", "gauge", "Of these, newer than on flash.", "dirty_bytes"),
    ("tier_vacant_bytes", "gauge", "Pages that wait for bytes on flash to come back.", "vacant_bytes"),
    ("tier_flash_bytes", "gauge", "Bytes on flash only.", "flash_bytes"),
    ("tier_touches_total", "counter", "Touches that came to the keeper.", "faults"),
    ("tier_touches_in_dram_total", "counter", "Of these, of bytes in dram.", "faults_in_dram"),
    ("tier_exposed_wait_seconds_total", "counter", "Time that touches waited.", "exposed_wait_s"),
    ("tier_asked_units_total", "counter", "Units that were prefetched or pinned.", "asked_units"),
    ("tier_asked_in_dram_total", "counter", "Of these, in dram already.", "asked_in_dram"),
    ("tier_read_bytes_total", "counter", "Bytes read from flash.", "read_bytes"),
    ("tier_written_bytes_total", "counter", "Bytes written to flash.", "written_bytes"),
    ("tier_dropped_bytes_total", "counter", "Bytes that left dram without a write.", "dropped_bytes"),
    ("tier_read_seconds_total", "counter", "Time spent reading, all threads together.", "read_s"),
    ("tier_written_seconds_total", "counter", "Time spent writing, all threads together.", "written_s"),
    ("tier_read_ahead_bytes_total", "counter", "Bytes that were to be read ahead.", "read_ahead_bytes"),
    ("tier_flushes_total", "counter", "Commits of a durable space.", "commits"),
    ("tier_errors_total", "counter", "What flash refused.", "errors"),
)
# name, type, help, what of Table.stat() it is
_TABLES = (
    (
        "table_rows",
        "gauge",
        "Rows of the table, on all its hosts; of dynamic ids, how many keys it has room for.",
        "rows",
    ),
    ("table_bytes", "gauge", "Bytes of its rows and states on this host.", "bytes"),
    ("table_read_rows_total", "counter", "Rows that were looked up; over hosts, for other hosts.", "read_rows"),
    ("table_updated_rows_total", "counter", "Rows that were updated.", "updated_rows"),
    ("table_steps_total", "counter", "Steps of its optimizer.", "steps"),
    ("table_interrupted_total", "counter", "Writers that died in an update.", "interrupted"),
    ("table_keys", "gauge", "Keys that have a row.", "keys"),
    ("table_admitted_total", "counter", "Keys that got a row.", "admitted"),
    ("table_evicted_total", "counter", "Keys of these that lost it to another.", "evicted"),
    ("table_refused_total", "counter", "Keys that came often enough, and found none less wanted.", "refused"),
)
# name, type, help, what of spaces() or describe_space() it is, and what it is multiplied by
_SPACES = (
    ("space_capacity_bytes", "gauge", "Bytes that the space has room for.", "bytes", 1),
    ("space_memory_bytes", "gauge", "Bytes of memory that its files take.", "memory_bytes", 1),
    ("space_members", "gauge", "Living processes of this host that have it open, its keeper too.", "members", 1),
    ("space_remote_members", "gauge", "Processes of other hosts that use this part.", "remote_members", 1),
    ("space_created_timestamp_seconds", "gauge", "When it was made.", "created_ns", 1e-9),
    ("space_free_bytes", "gauge", "Bytes of its room that are free.", "free", 1),
    ("space_largest_free_bytes", "gauge", "The longest run of these.", "largest_free", 1),
    ("space_metadata_bytes", "gauge", "Bytes of metadata.", "metadata_bytes", 1),
    ("space_arrays", "gauge", "Arrays in it.", "arrays", 1),
    ("space_readable", "gauge", "1 if it could be read, 0 if it is damaged or of another version.", "readable", 1),
)
# name, type, help, what of hosts_of() it is, and what it is multiplied by
_HOSTS = (
    ("host_up", "gauge", "1 if the host answers and has opened the space.", "up", 1),
    ("host_answers", "gauge", "1 if the host answers, whether or not it has opened the space.", "answers", 1),
    ("host_capacity_bytes", "gauge", "Bytes that its part has room for.", "bytes", 1),
    ("host_free_bytes", "gauge", "Bytes of these that are free.", "free", 1),
    ("host_round_trip_seconds", "gauge", "Time of a question and its answer.", "round_trip_us", 1e-6),
    ("host_misses_total", "counter", "Units that this host fetched from it.", "misses", 1),
    ("host_recalls_total", "counter", "Units that it took back from this host.", "recalls", 1),
    ("host_invalidations_total", "counter", "Copies that were dropped for its sake.", "invalidations", 1),
    ("host_received_bytes_total", "counter", "Bytes that came from it.", "bytes_in", 1),
    ("host_sent_bytes_total", "counter", "Bytes that went to it.", "bytes_out", 1),
)


def tier_metrics(spaces: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of an exposition: what openshelf.space.tiers_of says of each space."""
    return _of_each(((*row, 1) for row in _TIERS), [({"space": space}, facts) for space, facts in spaces.items()])


def kv_metrics(spaces: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """The text of an exposition: what openshelf.kv.describe says of each pool, by the names of spaces."""
    described = [({"space": space, "pool": pool["pool"]}, pool) for space, pools in spaces.items() for pool in pools]
    lines: list[str] = []
    for name, kind, text, key, in_tokens in _POOL:
        lines += _head(name, kind, text)
        for labels, pool in described:
            lines.append(_line(name, labels, int(pool[key]) * (int(pool["block_tokens"]) if in_tokens else 1)))
    lines += _head("kv_cache_usage_perc", "gauge", "Share of the pool that is in use, 0 to 1.")
    for labels, pool in described:
        share = int(pool["blocks"]) / max(1, int(pool["capacity_blocks"]))
        lines.append(_line("kv_cache_usage_perc", labels, share))
    lines += _head("kv_tenant_blocks", "gauge", "Blocks of a tenant.")
    for labels, pool in described:
        for tenant, facts in pool["tenants"].items():
            lines.append(_line("kv_tenant_blocks", {**labels, "tenant": tenant}, facts["blocks"]))
    return "\n".join(lines) + "\n"


def table_metrics(spaces: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """The text of an exposition: what openshelf.tables.describe says of each table, by the names of spaces."""
    found = [({"space": space, "table": table["table"]}, table) for space, its in spaces.items() for table in its]
    return _of_each(((*row, 1) for row in _TABLES), found)


def space_metrics(spaces: Iterable[Mapping[str, Any]]) -> str:
    """The text of an exposition: what openshelf.space.spaces says of each, and describe_space if it could be asked."""
    return _of_each(_SPACES, [({"space": str(one.get("url", one["name"]))}, one) for one in spaces])


def host_metrics(spaces: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
    """The text of an exposition: what openshelf.space.hosts_of says of each host, by the URLs of spaces."""
    return _of_each(
        _HOSTS, [({"space": url, "host": one["host"]}, one) for url, found in spaces.items() for one in found]
    )


def _of_each(
    rows: Iterable[tuple[str, str, str, str, float]], found: list[tuple[dict[str, str], Mapping[str, Any]]]
) -> str:
    lines: list[str] = []
    for name, kind, text, key, scale in rows:
        lines += _head(name, kind, text)
        for labels, facts in found:
            if (value := facts.get(key)) is not None:
                lines.append(_line(name, labels, +value if scale == 1 else value * scale))
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}"]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{_PREFIX}{name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
