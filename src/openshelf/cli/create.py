"""openshelf create: make a space."""

from __future__ import annotations

import argparse
import json
from typing import Any

from openshelf.cli._arguments import add_json
from openshelf.cli._screen import printable
from openshelf.errors import NameTaken
from openshelf.space import Space, format_size

_EPILOG = """\
It stays when this command ends, until `openshelf rm NAME` or a reboot; a durable one survives that, too: create it
again then, with --exist-ok. A space over several hosts is made by opening its URL, Space.open(URL, contribute=).

examples:
  openshelf create demo --dram 2GiB
  openshelf create large --dram 2GiB --flash /var/tmp/large:64GiB
  openshelf create kept --dram 1GiB --flash /ssd0/kept:32GiB --flash /ssd1/kept:32GiB --durable --exist-ok"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "create",
        help="make a space",
        description="Makes a space that processes of this host open by its name.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="1 to 64 of a-z, A-Z, 0-9, '_', '-', '.'")
    parser.add_argument("--dram", required=True, metavar="SIZE", help="memory that it may take, such as 2GiB")
    parser.add_argument(
        "--flash", action="append", metavar="PATH:SIZE", help="a file behind it, such as /var/tmp/shelf:64GiB: then it "
        "holds that much; several are striped"
    )  # fmt: skip
    parser.add_argument("--durable", action="store_true", help="with --flash: what was flushed survives power cuts")
    parser.add_argument("--backing", metavar="PATH", help="a directory, file or device instead of /dev/shm")
    parser.add_argument("--group", help="whose members may open it, by path")
    parser.add_argument(
        "--exist-ok", action="store_true", help="no error if there is such a space; restores a durable one"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        space = Space.create(
            args.name, args.dram, flash=args.flash, durable=args.durable, exist_ok=args.exist_ok,
            backing=args.backing, group=args.group,
        )  # fmt: skip
    except NameTaken as error:
        raise NameTaken(str(error).replace("pass exist_ok=True", "give --exist-ok")) from None
    with space:
        facts = space.describe()
    if args.json:
        print(json.dumps({key: facts[key] for key in ("name", "bytes", "base", "backing")}))
    else:
        print(printable(f"{args.name}: room for {format_size(facts['bytes'])} at {facts['base']:#x}"))
        print(printable(f"openshelf.Space.open({args.name!r}) opens it; `openshelf rm {args.name}` takes it away"))
    return 0
