"""openshelf ls: this user's spaces on this host, or the arrays of one."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

from rich.table import Column, Table

from openshelf.cli._arguments import WHICH_SPACE, add_hosts, add_json, add_space
from openshelf.cli._screen import cell, console
from openshelf.cli.stat import arrays_of
from openshelf.space import describe_space, format_size, spaces

_EPILOG = """\
"room" is what a space can hold, "memory" what its files take now; "open in" counts living processes. For a part of a
space over several hosts, the keeper is one of them, and processes of other hosts are counted apart. A space that no
process has open stays until `openshelf rm`. No space is opened for this.

examples:
  openshelf ls
  openshelf ls demo
  openshelf ls --json | jq '.[] | select(.members == 0) | .name'"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "ls",
        help="list the spaces of this user, or the arrays of one",
        description="Lists the spaces of this user on this host, or all arrays of one space, with their sizes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_space(parser, "space", f"{WHICH_SPACE}; without it all spaces are listed", "?")
    add_hosts(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.space is not None:
        return _arrays(args)
    found = spaces()
    if args.json:
        print(json.dumps(found))
        return 0
    if not found:
        print("no spaces; `openshelf create NAME --dram SIZE` makes one")
        return 0
    show(found)
    return 0


def _arrays(args: argparse.Namespace) -> int:
    entries = sorted(describe_space(args.space, hosts=args.hosts)["entries"], key=lambda entry: str(entry["name"]))
    if args.json:
        print(json.dumps(entries))
    elif entries:
        console().print(arrays_of(entries))
    else:
        print("no arrays")
    return 0


def show(found: list[dict[str, Any]]) -> None:
    """A line for each space."""
    right = {"justify": "right", "no_wrap": True}
    table = Table("name", Column("room", **right), Column("memory", **right), "open in", "created", "base", "")  # type: ignore[arg-type]  # one dict for both
    for space in found:
        name = cell(space.get("url", space["name"]))
        if "error" in space:
            table.add_row(name, "", "", "", "", "", f"[red]{cell(space['error'])}")
            continue
        created = datetime.fromtimestamp(space["created_ns"] / 1e9).strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(
            name, format_size(space["bytes"]), format_size(space["memory_bytes"]), open_in(space),
            created, f"{space['base']:#x}", "",
        )  # fmt: skip
    console().print(table)


def open_in(space: dict[str, Any]) -> str:
    """Who has it open, in words."""
    there = f", {remote} of other hosts" if (remote := space.get("remote_members")) else ""
    return f"{space['members']} process{'' if space['members'] == 1 else 'es'}{there}"
