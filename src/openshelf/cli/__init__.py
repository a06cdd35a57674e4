"""The `openshelf` command: one file per subcommand, each with add() and run()."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from openshelf.cli import fabric, hosts, keeper, kv, ls, plan, probe, rm, stat, top, tour, twin
from openshelf.cli._screen import printable
from openshelf.errors import OpenshelfError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="openshelf",
        description="One memory address space for AI: processes, hosts and tiers, read and written by load and store.",
    )
    parser.add_argument("--version", action="version", version=f"openshelf {version('openshelf')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (ls, stat, top, rm, kv, plan, hosts, keeper, probe, fabric, twin, tour):
        command.add(commands)
    args = parser.parse_args(argv)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not to fail at the exit
        return 141
    except OpenshelfError as error:
        if getattr(args, "json", False):
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        else:
            print(f"openshelf: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
