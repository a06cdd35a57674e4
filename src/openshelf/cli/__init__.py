"""The `openshelf` command: one file per subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from openshelf.cli import probe
from openshelf.errors import OpenshelfError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="openshelf", description="One memory address space for AI.")
    subparsers = parser.add_subparsers(required=True, metavar="command")
    probe.add(subparsers)
    args = parser.parse_args(arguments)
    try:
        code: int = args.run(args)
    except OpenshelfError as error:
        print(f"openshelf: {error}", file=sys.stderr)
        return 1
    return code
