"""What `openshelf fabric ls` lists."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from openshelf.cli._screen import console, printable

_SHOWN = {
    "media": ("rate_bit_per_s", "reach_m", "propagation_s_per_m", "power_w", "price_usd"),
    "switches": ("ports", "port_bandwidth_bytes_per_s", "latency_s", "kind", "power_w"),
    "protocols": ("semantics", "efficiency", "source"),
    "presets": (),
}


def listed(what: str) -> dict[str, dict[str, Any]]:
    """By name: the figures of each, as plain values."""
    from openshelf.fabric import Fabric, MemoryProtocol, generators, media, presets, protocols, switches

    if what == "generators":
        return {
            name: {each: {"expected": row[0], "meaning": row[1]} for each, row in rows.items()}
            for name, rows in generators().items()
        }
    if what == "presets":
        return {name: {"note": Fabric.load(name).note} for name in presets()}
    if what == "protocols":
        return {
            name: {
                "semantics": "memory" if isinstance(each, MemoryProtocol) else "message",
                "efficiency": each.framing.efficiency,
                "source": each.source,
                "note": each.note,
            }
            for name, each in protocols().items()
        }
    found = media() if what == "media" else switches()
    return {name: {key: _plain(getattr(each, key)) for key in (*_SHOWN[what], "note")} for name, each in found.items()}


def print_list(what: str, found: dict[str, dict[str, Any]]) -> None:
    """A table of what `listed` gives."""
    screen = console()
    if what == "generators":
        table = Table("generator", "parameter", "expected", "meaning")
        for name, rows in found.items():
            for number, (each, row) in enumerate(rows.items()):
                table.add_row(name if not number else "", each, row["expected"], row["meaning"])
        screen.print(table)
        return
    table = Table("name", *_SHOWN[what], "note")
    for name, row in found.items():
        table.add_row(name, *(_cell(value) for value in row.values()))
    screen.print(table)


def _cell(value: Any) -> str:
    return "-" if value is None else printable(f"{value:.4g}" if isinstance(value, float) else str(value))


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
