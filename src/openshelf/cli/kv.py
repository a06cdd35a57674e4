"""openshelf kv: the KV pools of a space."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table

from openshelf.cli._arguments import add_hosts, add_json, add_space
from openshelf.cli._screen import cell, console
from openshelf.kv import describe, pools
from openshelf.show import kv_metrics
from openshelf.space import format_size, look

_EPILOG = """\
Nothing is made or started for this. By URL: the pools of this host. A pool in a space with a flash tier can be looked
at while some process has the space open.

examples:
  openshelf kv ls demo
  openshelf kv stat demo --pool kv
  openshelf kv stat demo --prometheus"""

_ROWS = {
    "room": "capacity_blocks",
    "in use": "blocks",
    "of these, in dram": "dram_blocks",
    "on flash": "flash_blocks",
    "being filled": "filling_blocks",
    "asked for": "queried_blocks",
    "found": "hit_blocks",
    "stored": "stored_blocks",
    "of these, fetched from other hosts": "fetched_blocks",
    "evicted": "evicted_blocks",
    "expired": "expired_blocks",
    "declined": "declined_blocks",
}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "kv",
        help="the KV pools of a space",
        description="Lists the KV pools of a space, or describes one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = parts.add_parser("ls", help="list the pools", description="Lists the KV pools of a space.")
    stat = parts.add_parser(
        "stat", help="describe a pool", description="Shows a pool's room, and what was asked, found, stored, evicted."
    )
    for one in (listing, stat):
        add_space(one, "space")
        add_hosts(one)
        add_json(one)
    stat.add_argument("--pool", default="kv", metavar="NAME", help="its name (default kv)")
    stat.add_argument(
        "--prometheus", action="store_true", help="print all pools of the space as Prometheus reads them (node_exporter"
        " and others collect such text)"
    )  # fmt: skip
    listing.set_defaults(run=run_ls)
    stat.set_defaults(run=run_stat)


def run_ls(args: argparse.Namespace) -> int:
    with look(args.space, hosts=args.hosts) as space:
        found = [describe(space, name) for name in pools(space)]
    if args.json:
        print(json.dumps(found))
        return 0
    table = Table("pool", "blocks", "of", "tokens", "bytes a block", "hit rate")
    for pool in found:
        table.add_row(
            cell(pool["pool"]), f"{pool['blocks']:,}", f"{pool['capacity_blocks']:,}",
            f"{pool['blocks'] * pool['block_tokens']:,}", format_size(pool["block_bytes"]), _rate(pool),
        )  # fmt: skip
    console().print(table if found else "no pools in this space")
    return 0


def run_stat(args: argparse.Namespace) -> int:
    with look(args.space, hosts=args.hosts) as space:
        if args.prometheus:
            print(kv_metrics({args.space: [describe(space, name) for name in pools(space)]}), end="")
            return 0
        pool = describe(space, args.pool)
    if args.json:
        print(json.dumps(pool))
        return 0
    table = Table("", "blocks", "tokens")
    for label, key in _ROWS.items():
        table.add_row(label, f"{pool[key]:,}", f"{pool[key] * pool['block_tokens']:,}")
    screen = console()
    screen.print(table)
    screen.print(
        f"{pool['block_tokens']} tokens and {format_size(pool['block_bytes'])} a block; "
        f"{pool['queries']:,} look-ups, hit rate {_rate(pool)}; "
        f"{format_size(pool['dram_blocks'] * pool['block_bytes'])} in dram, "
        f"{format_size(pool['flash_blocks'] * pool['block_bytes'])} on flash"
    )
    if any(pool["tenants"]):
        tenants = Table("tenant", "blocks", "quota")
        for tenant, facts in pool["tenants"].items():
            tenants.add_row(cell(tenant or "(none)"), f"{facts['blocks']:,}", f"{facts['quota_blocks'] or 'none'}")
        screen.print(tenants)
    return 0


def _rate(pool: dict[str, Any]) -> str:
    return f"{pool['hit_blocks'] / pool['queried_blocks']:.1%}" if pool["queried_blocks"] else "nothing asked yet"
