"""The `openshelf` command: a file or a folder for each subcommand, with add() and run()."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from openshelf.cli import (
    completion,
    create,
    fabric,
    hosts,
    keeper,
    kv,
    ls,
    metrics,
    plan,
    probe,
    rm,
    stat,
    tables,
    top,
    tour,
    twin,
)
from openshelf.cli._screen import printable
from openshelf.cli._tree import hand_examples_down
from openshelf.errors import OpenshelfError

_COMMANDS = (
    create, ls, stat, top, rm, kv, tables, plan, hosts, keeper, metrics, probe, fabric, twin, tour, completion,
)  # fmt: skip
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of who takes what is printed
_EPILOG = """\
`openshelf COMMAND --help` says more of each, with examples. Every command has --json. Commands that show something
make nothing, start nothing and join nothing."""


class _WrongUsage(Exception):
    """Arguments that a command does not take: what is wrong with them, and how it is used."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """Says itself what it does not know: argparse leaves it to the outermost, which shows how that is used."""

    def error(self, message: str) -> NoReturn:
        raise _WrongUsage(message, f"{self.format_usage()}{self.prog}: error: {message}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def command_line() -> argparse.ArgumentParser:
    """All commands with their arguments."""
    parser = _Parser(
        prog="openshelf",
        description="One memory address space for AI: processes, hosts and tiers, read and written by load and store.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"openshelf {version('openshelf')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    hand_examples_down(parser)
    parser.set_defaults(whole=parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command: 0 if it did what it should, 1 if not, 130 after Ctrl-C, 141 if nobody reads what it says."""
    args = argparse.Namespace()
    _open_streams()
    try:
        try:
            parser = command_line()
            if not (sys.argv[1:] if argv is None else argv):  # a first look
                parser.print_help(sys.stderr)
                return 2
            parser.parse_args(argv, args)
            return int(args.run(args))
        finally:
            sys.stdout.flush()
    except _WrongUsage as wrong:
        if "--json" in (sys.argv[1:] if argv is None else argv):
            print(json.dumps({"error": "BadInput", "message": str(wrong)}))
        else:
            print(printable(wrong.usage), file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads has enough
        _drop_output()
        return 141
    except OpenshelfError as error:
        return _said(args, type(error).__name__, str(error))
    except OSError as error:  # of a file that an argument names
        if error.filename is not None:
            return _said(args, "OSError", f"{error.filename}: {error.strerror}")
        if error.errno not in _FULL:
            raise
        _drop_output()
        print(f"openshelf: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would only say where the process ends
        return 130


def _open_streams() -> None:
    """Those that were closed for this process lead nowhere: a connection would get their numbers, and what is said
    would be sent on it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 (as long as the process)


def _drop_output() -> None:
    """What is left is not to fail at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _said(args: argparse.Namespace, error: str, message: str) -> int:
    if getattr(args, "json", False):
        print(json.dumps({"error": error, "message": message}))
    else:
        print(f"openshelf: {printable(message)}", file=sys.stderr)
    return 1
