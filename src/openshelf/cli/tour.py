"""openshelf tour: what Openshelf does, shown and measured on this machine in a minute."""

from __future__ import annotations

import argparse
import json
from typing import Any

from openshelf.cli._arguments import add_json
from openshelf.cli._screen import console
from openshelf.show.tour import CHAPTERS

_WIDTH = 100  # of lines in a file or a pipe
_EPILOG = """\
examples:
  openshelf tour
  openshelf tour --chapter kv"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tour",
        help="see it work, measured here",
        description="Runs each capability once on this machine and shows what happened.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--chapter", choices=list(CHAPTERS), help="only this one")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    screen = console(stderr=args.json, width=_WIDTH)
    results: dict[str, Any] = {}
    for name, chapter in CHAPTERS.items():
        if args.chapter in (None, name):
            results[name] = chapter(screen)
    if args.json:
        print(json.dumps(results))
    return 0
