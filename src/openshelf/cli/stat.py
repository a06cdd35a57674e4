"""openshelf stat: one space, its room, members and arrays."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table

from openshelf.cli._arguments import add_hosts, add_json, add_space
from openshelf.cli._screen import cell, console
from openshelf.show import tier_lines
from openshelf.space import describe_space, format_size

_EPILOG = """\
By URL: this host's part, and the parts of the other hosts if the keeper of this host runs. Nothing is made or started
for this: a host that has no part of the space gets none. Members of this part on other hosts are counted apart.

examples:
  openshelf stat demo
  openshelf stat demo --json | jq '.entries[] | [.name, .nbytes]'"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "stat",
        help="describe a space",
        description="Shows a space's room, members, pages, tiers and largest arrays.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_space(parser, "name")
    add_hosts(parser)
    add_json(parser, "print JSON, with every array")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="show the N largest arrays (default 20)")
    parser.set_defaults(run=run)


def arrays_of(entries: list[dict[str, Any]]) -> Table:
    """A line for each."""
    arrays = Table("array", "dtype", "shape", "bytes", "address")
    for entry in entries:
        kind = entry["dtype"] if entry["kind"] == "array" else entry["kind"]
        arrays.add_row(
            cell(entry["name"]), kind, str(entry["shape"]), format_size(entry["nbytes"]), f"{entry['address']:#x}"
        )
    return arrays


def run(args: argparse.Namespace) -> int:
    facts = describe_space(args.name, hosts=args.hosts)
    if args.json:
        print(json.dumps(facts))
        return 0
    screen = console()
    table = Table("", show_header=False)
    here = [m for m in facts["members"] if m["alive"] and not m["remote"]]
    remote = [m for m in facts["members"] if m["alive"] and m["remote"]]
    rows = {
        "space": facts["name"],
        "room": f"{format_size(facts['bytes'])}, {format_size(facts['free'])} free, "
        f"longest run {format_size(facts['largest_free'])}",
        "can grow to": format_size(facts["limit"]),
        "arrays": f"{facts['arrays']} (metadata {format_size(facts['metadata_bytes'])})",
        "addresses": f"{facts['base']:#x} + {format_size(facts['reserve'])}, data at {facts['data_address']:#x}",
        "backing": f"{facts['backing']} ({facts['file_system']}, pages of {format_size(facts['page_size'])}, "
        f"{format_size(facts['huge_bytes'])} in huge pages here)",
        "members": ", ".join(
            f"pid {m['pid']} ({m['pins']} pins{', read-only' if m['read_only'] else ''})" for m in here
        ),
    }
    if remote:
        rows["of other hosts"] = f"{len(remote)} members, {sum(m['pins'] for m in remote)} pins"
    for key, value in (rows | _tiers(facts.get("tiers"))).items():
        table.add_row(key, cell(str(value)))
    screen.print(table)
    if entries := facts["entries"]:
        arrays = arrays_of(sorted(entries, key=lambda entry: -entry["nbytes"])[: max(0, args.top)])
        screen.print(arrays)
        if len(entries) > args.top:
            screen.print(f"... and {len(entries) - args.top} more (--top, --json)")
    return 0


def _tiers(facts: dict[str, Any] | None) -> dict[str, str]:
    """Rows of a space that has a flash tier."""
    if facts is None:
        return {}
    files = f"{', '.join(facts['files'])}{'; durable' if facts['durable'] else ''}"
    rows = {**tier_lines(facts), "flash files": files, "keeper": f"pid {facts['keeper']}; see `openshelf top`"}
    return rows | ({"errors": f"{facts['errors']:,}, the last: {facts['trouble']}"} if facts["errors"] else {})
