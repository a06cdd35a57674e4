"""What is asked of a storm's spaces when nobody works on them: after a power cut, and at the end."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from openshelf import Space
from openshelf.errors import Corrupt, NameTaken, NoAgreement, NotPermitted, UnknownName
from tests.processes import State
from tests.storm.guest import CONTRIBUTE, home_of
from tests.storm.ledger import (
    ABSENT,
    CONTESTED,
    NAMES,
    NONE,
    SPACES,
    THERE,
    WORKERS,
    Change,
    Ledger,
    Problem,
    content_of,
)
from tests.storm.member import TITLES, Handle, Member, furnish, life_of

_PATIENCE_S = 20.0


def restore(state: State, kind: str, place: str) -> None:
    """Each space is made again from its files, and shows one moment since its last flush."""
    member = Member(kind, 0, place)
    for index in range(SPACES):
        life, there = member.book.life(index)
        options = member.options(index, life)
        try:
            dram = "64MiB" if index == CONTESTED else "32MiB"  # as it was made
            space = Space.create(TITLES[index], dram, exist_ok=True, **options)
        except (
            Corrupt,
            NameTaken,
        ) as error:  # being made or removed, or never flushed: its user removes its files
            flushed = index != CONTESTED and any(member.book.flushed_in(index, owner, life) for owner in range(WORKERS))
            if flushed and there == THERE:
                raise Problem(f"{TITLES[index]} was flushed, and cannot be restored: {error!r}") from error
            for file in (member.place / "flash").glob(f"{TITLES[index]}*"):
                file.unlink()
            member.book.live(index, life, ABSENT)
            continue
        if index != CONTESTED and there == THERE:
            compare_restored(member, space, index, life)
        else:
            space.close()
            Space.remove(TITLES[index])
            member.book.live(index, life, ABSENT)


def compare_restored(member: Member, space: Space, index: int, life: int) -> None:
    try:
        if life_of(space, index) != life:
            raise Problem(f"{TITLES[index]} was restored as in another life")
    except UnknownName:
        if any(member.book.flushed_in(index, owner, life) for owner in range(WORKERS)):
            raise Problem(f"{TITLES[index]} was flushed, and restored empty") from None
        space.close()
        Space.remove(TITLES[index])
        member.book.live(index, life, ABSENT)
        return
    for owner in range(WORKERS):
        member.book.fall_back(index, owner, life, shown(space, index, life, owner))
    sound(space)


def shown(space: Space, index: int, life: int, owner: int) -> dict[int, int]:
    """The contents that the names of an owner show."""
    found = {name: space.get(f"{owner}/{name}") for name in range(NAMES)}
    return {name: content_of(array.numpy(), index, life, owner) for name, array in found.items() if array is not None}


def sound(space: Space) -> None:
    """The metadata is whole, and no memory is kept that nobody holds. A host learns within seconds of what a process of
    another one let go of."""
    deadline = time.monotonic() + _PATIENCE_S
    here = getattr(space._native, "core", space._native)  # of a space over hosts, what lives on this one
    while True:
        space.describe()  # gives back what the dead had
        checked = space.check()
        wrong = {kind: count for kind, count in checked.items() if kind not in ("arrays", "bytes") and count}
        kept, listed = here.audit()["bytes"], sum(entry[1] for entry in here.list(""))
        if kept == listed and not wrong:
            return
        if here is space._native or time.monotonic() > deadline:  # a host's keeper may be giving back just now
            more = f"{kept - listed} bytes; {here.stats()}; {here.list('')}"
            raise Problem(f"the check of {space.name} finds {wrong}, or it keeps what nobody holds: {more}")
        time.sleep(0.05)


def last_look(state: State, kind: str, place: str) -> None:
    """Nobody works any more: every name shows what its owner did last, every lock is free, nothing is kept."""
    book = Ledger(Member(kind, 0, place).place / "ledger")
    for index in range(SPACES):
        if index == CONTESTED:
            with contextlib.suppress(UnknownName):
                Space.remove(TITLES[index])
            continue
        life, there = book.life(index)
        if there != THERE:
            continue
        with Space.open(TITLES[index]) as space:
            look_at(space, book, Handle(space, index, life))
        if (members := Space.members(TITLES[index])) > 1:  # a keeper is one
            raise Problem(f"{TITLES[index]} has {members} members, and nobody has it open")
        Space.remove(TITLES[index])


def look_at_names(space: Space, book: Ledger, handle: Handle) -> None:
    for owner in range(WORKERS):
        found = shown(space, handle.number, handle.life, owner)
        wanted = book.shown(handle.number, owner, handle.life)
        if found != wanted:
            raise Problem(f"the names of owner {owner} in {space.name} show {found}, not {wanted}")
    if not space.lock("lock").acquire(5):
        raise Problem("the lock is held by nobody who lives")
    space.lock("lock").release()


def look_at(space: Space, book: Ledger, handle: Handle) -> None:
    look_at_names(space, book, handle)
    space.delete("channel")  # with the arrays that were under way in it
    sound(space)
    names: list[Any] = [entry for entry in space.list() if "/" in entry.name]
    for entry in names:
        space.delete(entry.name)
    sound(space)


# Over hosts


def url_of(index: int) -> str:
    return f"{os.environ['STORM_URL']}/{TITLES[index]}"


def furnish_over_hosts(state: State, lives: dict[int, int]) -> None:
    """The spaces begin these lives."""
    for index, life in lives.items():
        with Space.open(url_of(index), contribute=CONTRIBUTE) as space:
            furnish(space, index, life, home=0)


def visit(state: State, indexes: list[int]) -> None:
    """This host has a part of them, and a keeper."""
    for index in indexes:
        Space.open(url_of(index), contribute=CONTRIBUTE).close()


def remove_parts(state: State, indexes: list[int]) -> None:
    """This host's parts go; its keeper may not have noticed yet that the last process has let go."""
    deadline = time.monotonic() + _PATIENCE_S
    for index in indexes:
        while True:
            try:
                Space.remove(url_of(index))
            except UnknownName:
                break  # gone, or nobody opened it here
            except (NoAgreement, NotPermitted):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def forget_home(book: Ledger, index: int, life: int, home: int) -> None:
    """The names that lived on a host are gone with its part."""
    for owner in range(WORKERS):
        for name in book.shown(index, owner, life):
            if home_of(name) == home:
                gone = Change(life, name, NONE, 0)
                book.begin(index, owner, gone)
                book.end(index, owner, gone)


def last_look_over_hosts(state: State, place: str) -> None:
    book = Ledger(Path(place) / "ledger")
    for index in range(SPACES):
        life = book.life(index)[0]
        with Space.open(url_of(index), contribute=CONTRIBUTE) as space:
            if life_of(space, index) != life:
                raise Problem(f"{TITLES[index]} is of another life than {life}")
            look_at_names(space, book, Handle(space, index, life))
            if "channel" in space:
                space.delete("channel")  # with the arrays that were under way in it
            sound(space)
