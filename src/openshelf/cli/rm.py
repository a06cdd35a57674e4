"""openshelf rm: take a space away, or all that nobody has open."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from rich.table import Table

from openshelf.cli import ls
from openshelf.cli._arguments import add_hosts, add_json, add_space
from openshelf.cli._screen import cell, console, printable
from openshelf.errors import BadInput, OpenshelfError
from openshelf.space import Space, spaces, tiers_of

_YOUNG_S = 10.0  # who makes a space opens it after that
_EPILOG = """\
--stale lists the spaces that no living process has open. With --yes they are removed; on a terminal you are asked.
Durable spaces, parts of spaces over several hosts, damaged spaces (nobody can tell who has them open) and spaces that
were made in the last seconds are left, and listed with the reason; remove them by name.

examples:
  openshelf rm demo
  openshelf rm --stale              shows what would go
  openshelf rm --stale --yes"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "rm",
        help="remove a space",
        description="Removes a space with everything in it. Processes that have it open keep only their views.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "the space's name; its URL: then this host's part of it; or a DAX device that another host left"
    add_space(parser, "name", what, "?")
    add_hosts(parser)
    parser.add_argument("--force", action="store_true", help="even if processes have it open")
    parser.add_argument("--stale", action="store_true", help="all spaces that no living process has open")
    parser.add_argument("--yes", action="store_true", help="with --stale: remove them, do not ask")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.stale:
        return _remove_stale(args)
    if args.name is None or args.yes:
        raise BadInput("expected the name of a space, or --stale [--yes]")
    refuses = args.name.startswith(("openshelf://", "/dev/dax"))  # by itself, while it is in use
    members = 0 if refuses else Space.members(args.name)
    if members and not args.force:
        message = f"the space {args.name!r} is open in {members} process(es); close it there, or --force"
        print(json.dumps({"error": "InUse", "message": message})) if args.json else print(
            f"openshelf: {printable(message)}", file=sys.stderr
        )
        return 1
    Space.remove(args.name, hosts=args.hosts)
    if args.json:
        print(json.dumps({"removed": args.name}))
    return 0


def _remove_stale(args: argparse.Namespace) -> int:
    if args.name is not None or args.force:
        raise BadInput("--stale goes with --yes and --json only: it is about all spaces that nobody has open")
    found, left = _sorted()
    sure = args.yes
    if not args.json:
        if found:
            ls.show(found)
        else:
            print("no stale spaces")
        _show_left(left)
        if found and not sure and sys.stdin.isatty() and sys.stdout.isatty():
            print(f"Remove {len(found)} with everything in them? [y/N] ", end="", flush=True)
            sure = sys.stdin.readline().strip().lower() in ("y", "yes")
        elif found and not sure:
            print("nothing was removed; --yes removes them")
    failed = {each["name"]: why for each in found if sure and (why := _remove(each["name"]))}
    removed = [each["name"] for each in found if sure and each["name"] not in failed]
    if args.json:
        print(json.dumps({"stale": found, "removed": removed, "left": left | failed}))
    elif found and sure:
        print(f"removed: {', '.join(removed) or 'none'}")
        _show_left(failed)
    return 0


def _sorted() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The spaces that nobody needs, and why each other one is left, by its name or URL."""
    durable = {name for name, facts in tiers_of().items() if facts.get("durable", True)}  # a damaged one: who knows
    stale, left = [], {}
    for space in spaces():
        if why := _needed(space, durable):
            left[str(space.get("url", space["name"]))] = why
        else:
            stale.append(space)
    return stale, left


def _needed(space: dict[str, Any], durable: set[str]) -> str | None:
    """Why a space is not taken for stale."""
    if "error" in space:
        return f"damaged, so nobody can tell who has it open: {space['error']}"
    if "url" in space:
        return "a part of a space over several hosts: others may have bytes of it"
    if space["name"] in durable:
        return "durable: it is meant to stay"
    if space["members"]:
        return f"open in {ls.open_in(space)}"
    return "it was made just now" if time.time() - space["created_ns"] / 1e9 <= _YOUNG_S else None


def _show_left(left: dict[str, str]) -> None:
    if left:
        table = Table("left", "why")
        for name, why in left.items():
            table.add_row(cell(name), cell(why))
        console().print(table)


def _remove(name: str) -> str | None:
    """Unless somebody has opened it meanwhile; why it was not removed."""
    if Space.members(name):
        return "some process has opened it meanwhile"
    try:
        Space.remove(name)
    except OpenshelfError as error:
        return str(error)
    return None
