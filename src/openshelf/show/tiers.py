"""Spaces with a flash tier as they change: what happened between two looks at their counts, and where bytes are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from openshelf.space import format_size

WIDTH = 32  # of a bar
_MOVED = ("read_bytes", "written_bytes", "dropped_bytes", "read_ahead_bytes", "faults", "asked_units", "errors")


def rates(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, float | None]:
    """What happened in so many seconds between two of tiers_of(), per second; shares of what happened then.

    `exposed_wait` is seconds that touches waited, for each second: above 1 where several threads did. A count that
    has become smaller is another space's of the same name: nothing is known of that one yet.
    """
    new = {key: max(0, after[key] - before[key]) for key in (*_MOVED, "faults_in_dram", "asked_in_dram")}
    found: dict[str, float | None] = {f"{key}_per_s": new[key] / seconds for key in _MOVED}
    found["exposed_wait"] = max(0.0, after["exposed_wait_s"] - before["exposed_wait_s"]) / seconds
    found["touch_hit_rate"] = _share(new["faults_in_dram"], new["faults"])
    found["asked_hit_rate"] = _share(new["asked_in_dram"], new["asked_units"])
    return found


def _share(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def keeper_runs(facts: Mapping[str, Any]) -> bool:
    """Whether the keeper that is written down is there: one that was killed took no leave."""
    return bool(facts["keeper"]) and Path(f"/proc/{facts['keeper']}").exists()


def tier_bar(facts: Mapping[str, Any], width: int = WIDTH) -> Text:
    """All that a space can hold: in dram, on flash, never written. What is there at all is seen."""
    rest, bar = width, Text()
    for key, character, style in (("dram_bytes", "█", "green"), ("flash_bytes", "▓", "blue")):
        cells = min(rest, max(round(width * facts[key] / facts["capacity"]), int(facts[key] > 0)))
        bar.append(character * cells, style)
        rest -= cells
    return bar.append("░" * rest, "dim")


def tier_lines(facts: Mapping[str, Any]) -> dict[str, str]:
    """Where the bytes of a space are, in words."""
    inside = ("pinned", "dirty", "vacant")
    parts = [f"{format_size(facts['dram_bytes'])} of {format_size(facts['dram_budget'])}"]
    parts += [f"{kind} {format_size(facts[f'{kind}_bytes'])}" for kind in inside]
    return {
        "dram": ", ".join(parts),
        "flash": f"{format_size(facts['flash_bytes'])}, never written {format_size(facts['empty_bytes'])}, of "
        f"{format_size(facts['capacity'])} in all",
    }


def tier_view(name: str, facts: Mapping[str, Any], now: Mapping[str, float | None] | None) -> Table:
    """One space of `openshelf top`; `now` is what rates() says, None before the second look."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=9)
    table.add_column()
    if "error" in facts:
        table.add_row(Text(name, "bold"), f"[red]{escape(facts['error'])}")
        return table
    kept = f"keeper {facts['keeper']}" if keeper_runs(facts) else "no keeper"
    durable = f", durable, {facts['commits']:,} flushes" if facts["durable"] else ""
    table.add_row(Text(name, "bold"), tier_bar(facts).append(f"  {kept}{durable}", "none"))
    for label, text in tier_lines(facts).items():
        table.add_row(label, text)
    if now is None:
        table.add_row("", "...")
    else:
        moved = {"read": "read", "written": "written", "dropped": "dropped", "read_ahead": "read ahead"}
        table.add_row("moved", ", ".join(f"{text} {_speed(now[f'{key}_bytes_per_s'])}" for key, text in moved.items()))
        table.add_row(
            "touches",
            f"{now['faults_per_s']:,.0f} a second came to the keeper, {_percent(now['touch_hit_rate'])} of them in "
            f"dram; waited {now['exposed_wait']:.3f} s a second",
        )
        asked = f"{now['asked_units_per_s']:,.0f} units a second, {_percent(now['asked_hit_rate'])} of them in dram"
        table.add_row("asked for", asked)
    total = f"touches {facts['faults']:,}, {_percent(facts['touch_hit_rate'])} in dram; waited "
    total += f"{facts['exposed_wait_s']:.2f} s; read {format_size(facts['read_bytes'])}, "
    total += f"written {format_size(facts['written_bytes'])}"
    table.add_row("so far", total)
    if facts["errors"]:
        table.add_row("errors", f"[red]{facts['errors']:,}, the last: {escape(facts['trouble'])}")
    return table


def _speed(rate: float | None) -> str:
    return f"{(rate or 0) / 1e6:,.0f} MB/s"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"
