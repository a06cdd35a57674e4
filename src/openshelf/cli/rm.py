"""openshelf rm: take a space away."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from openshelf.space import Space


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "rm",
        help="remove a space",
        description="Removes a space with everything in it. Processes that have it open keep only their views.",
    )
    parser.add_argument("name", help="the space's name, or its URL: then this host's part of it")
    parser.add_argument("--hosts", metavar="FILE", help="with a URL: the hosts file")
    parser.add_argument("--force", action="store_true", help="even if processes have it open")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    url = args.name.startswith("openshelf://")  # then removing refuses by itself while it is in use
    members = 0 if url else Space.members(args.name)
    if members and not args.force:
        message = f"the space {args.name!r} is open in {members} process(es); close it there, or --force"
        print(json.dumps({"error": "InUse", "message": message})) if args.json else print(
            f"openshelf: {message}", file=sys.stderr
        )
        return 1
    Space.remove(args.name, hosts=args.hosts)
    if args.json:
        print(json.dumps({"removed": args.name}))
    return 0
