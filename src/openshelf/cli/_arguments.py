"""Arguments that several commands have, with the same names and words, and what a shell completes in them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

_COMPLETES = "completes"
SPACES, FILES = "spaces", "files"
_FILE_NAMES = ("FILE", "PATH", "DIR")
WHICH_SPACE = "the space's name, the path of its directory, or its URL"


def add_space(parser: argparse.ArgumentParser, name: str, help: str = WHICH_SPACE, nargs: str | None = None) -> None:
    """A positional argument that names a space."""
    setattr(parser.add_argument(name, help=help, nargs=nargs), _COMPLETES, SPACES)


def add_files(parser: argparse.ArgumentParser, *names: str, **more: object) -> None:
    """An argument that is a path of any file, though its metavar does not say so."""
    setattr(parser.add_argument(*names, **more), _COMPLETES, FILES)  # type: ignore[arg-type]  # argparse's own


def add_hosts(parser: argparse.ArgumentParser, help: str = "with a URL: the hosts file") -> None:
    parser.add_argument("--hosts", metavar="FILE", help=help)


def add_json(parser: argparse.ArgumentParser, help: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=help)


def output_file(text: str) -> Path:
    """The type of an argument that names a file to write: what cannot be is said before a long computation, not after.

    A file that is there is overwritten.
    """
    path = Path(text).expanduser()
    reason = ""
    if path.is_dir():
        reason = "it is a directory"
    elif not path.parent.is_dir():
        reason = f"there is no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "this user may not write there"
    if reason:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {reason}")
    return path


def completes(action: argparse.Action) -> str:
    """What a shell offers for a value of it: SPACES, FILES, or nothing."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return getattr(action, _COMPLETES, FILES if metavar in _FILE_NAMES else "")
