"""openshelf ls: this user's spaces on this host."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from openshelf.cli._screen import console
from openshelf.space import spaces


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "ls", help="list the spaces of this user", description="Lists the spaces of this user on this host."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = spaces()
    if args.json:
        print(json.dumps(found))
        return 0
    if not found:
        print("no spaces; openshelf.Space.create(name, dram=...) makes one")
        return 0
    table = Table("name", "base", "open in", "created", "")
    for space in found:
        if "error" in space:
            table.add_row(space["name"], "", "", "", f"[red]{escape(space['error'])}")
            continue
        created = datetime.fromtimestamp(space["created_ns"] / 1e9).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(space["name"], f"{space['base']:#x}", f"{space['members']} processes", created, "")
    console().print(table)
    return 0
