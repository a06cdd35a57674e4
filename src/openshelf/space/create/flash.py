"""The flash tier of a space that is being made: which files, how large."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import NamedTuple

from openshelf import _core
from openshelf._files import given_path
from openshelf._sizes import format_size, parse_size
from openshelf.errors import BadInput, Corrupt, NoRoom

_MOST_FILES = 8
_LEAST = 32 << 20  # of dram, and of flash


class Flash(NamedTuple):
    """Files of one size, striped, and how many units of memory come before them."""

    paths: list[str]
    slots: int
    units: int  # of data: what the space can hold
    capacity: int  # of those, in dram at a time
    durable: bool

    @property
    def nbytes(self) -> int:
        return self.units * _core.UNIT

    def make(self, directory: Path, mode: int) -> None:
        """Its files, and what the space's directory says of them."""
        number = secrets.randbits(63) | 1
        _core.make_tiers(
            str(directory), self.units, self.capacity, self.slots, self.paths, self.durable, number, mode
        )  # fmt: skip


def parse_flash(flash: str | Sequence[str], name: str, dram: int, durable: bool, check_room: bool = True) -> Flash:
    """`"/path/file:64GiB"`, or several of those."""
    texts = list(flash) if isinstance(flash, Sequence) and not isinstance(flash, str | bytes) else [flash]
    if not 1 <= len(texts) <= _MOST_FILES:
        raise BadInput(f"flash is 1 to {_MOST_FILES} files, got {len(texts)}")
    paths, sizes = [], set()
    for number, text in enumerate(texts):
        where, colon, size = str(text).rpartition(":")
        if not isinstance(text, str | os.PathLike) or not colon or not where or "\0" in where:
            raise BadInput(f"flash={text!r}: expected PATH:SIZE, such as '/var/tmp/shelf:64GiB'")
        path = given_path(where, "flash")
        try:
            if path.is_dir():
                path = path / f"openshelf-{os.getuid()}-{name}-{number}.flash"
            if not path.parent.is_dir():
                raise BadInput(f"flash={text!r}: there is no directory {path.parent}")
        except OSError as error:  # a name that no file can have
            raise BadInput(f"flash={text!r}: {error.strerror}") from None
        paths.append(str(path))
        sizes.add(parse_size(size))
    if len(sizes) > 1 or len(set(paths)) < len(paths):
        raise BadInput(f"flash={flash!r}: striped files are of one size, and different files")
    (each,) = sizes
    slots = each // _core.UNIT * len(paths)
    capacity = dram // _core.UNIT
    # What was flushed is kept until the next flush is whole: meanwhile new versions need room of their own.
    units = slots - capacity - max(256, slots // 64) if durable else slots
    if min(dram, units * _core.UNIT) < _LEAST:
        beyond = f"; a durable one, as much flash as dram and {format_size(_LEAST)} more" if durable else ""
        raise BadInput(f"a space with a flash tier has at least {format_size(_LEAST)} of dram and of flash{beyond}")
    if capacity > units:
        raise BadInput(
            f"dram={format_size(dram)} is more than the flash behind it, {format_size(units * _core.UNIT)}: every byte "
            "has a place on flash, and dram holds those in use; give more flash, or less dram"
        )
    if check_room and not (durable and durable_at(paths[0])):
        _check_room(paths, each)
    return Flash(paths, slots, units, capacity, durable)


def durable_at(path: str) -> bool:
    """Whether a durable space was left at the path of its first file. Corrupt if only its journal was left: a new space
    would look as if nothing had ever been there."""
    first = Path(path)
    if not first.exists() and (left := sorted(first.parent.glob(f"{escape(first.name)}.*.journal.[01]"))):
        raise Corrupt(
            f"the flash file {path} is gone, but its journal {left[0]} is there; put the file back, or remove the "
            "journal if that space may be lost"
        )
    return _core.durable_at(path)


def _check_room(paths: list[str], each: int) -> None:
    for path in paths:
        status = os.statvfs(Path(path).parent)
        free, wanted = status.f_bavail * status.f_frsize, each * len(paths)
        if free < each:
            raise NoRoom(
                f"{Path(path).parent} has {format_size(free)} free, the flash tier wants {format_size(wanted)} in all; "
                "ask for less, or give another path"
            )
