"""A space on one host with a flash tier: its keeper moves units of bytes between memory and flash."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openshelf import _core
from openshelf._sizes import whole
from openshelf.errors import BadInput, Closed, NotPermitted, OpenshelfError
from openshelf.space import faults
from openshelf.space.copies import Ranges
from openshelf.space.create import registry
from openshelf.space.hosts import start_keeper
from openshelf.space.locality.local import NO_FLASH, OneHost
from openshelf.space.transfer import Asked, Pinned, Transfer

_MOST = 1_000_000  # of a priority, either way


def attach(core: _core.Core) -> None:
    """Maps the space's data in this process, with its keeper behind it, which is started if there is none."""
    directory = Path(core.directory).resolve()
    try:
        owner = directory.stat().st_uid
    except FileNotFoundError:
        raise Closed(f"the space at {directory} was removed while it was being opened") from None
    if owner != os.geteuid():  # the keeper would be ours, and the files that it uses the ones that they named
        raise NotPermitted(
            f"the space at {directory} has a flash tier and belongs to user {owner}: only its owner, not user "
            f"{os.geteuid()}, can open it"
        )
    keeper = start_keeper.of_space(directory)
    wanted = faults.wanted()
    tiers = start_keeper.meet(keeper, lambda sock: _core.attach_tiers(core, sock, keeper.command, wanted))
    if wanted and tiers.faults == "none":
        faults.tell_none("views of arrays hold their bytes in dram, and a touch brings nothing back from flash")


def tiers_of(name: str | None = None) -> dict[str, dict[str, Any]]:
    """What describe()["tiers"] says of this user's spaces that have a flash tier, by name, or of one (BadInput if it
    has none). None is opened, no keeper asked: their files are read. Of a damaged one: `error`."""
    if name is not None:
        directory = registry.find(name)
        if not (directory / "tiers").exists():
            raise BadInput(f"{name!r}: {NO_FLASH}")
        return {name: _described(_core.tier_counts(str(directory)))}
    found: dict[str, dict[str, Any]] = {}
    for each in registry.names():
        directory = registry.root() / each
        if not (directory / "tiers").exists():
            continue
        try:
            found[each] = _described(_core.tier_counts(str(directory)))
        except OpenshelfError as error:
            found[each] = {"error": str(error)}
    return found


def _share(part: float, whole: float) -> float | None:
    """None of nothing."""
    return part / whole if whole else None


def _described(counts: Mapping[str, Any]) -> dict[str, Any]:
    """The native counts, in seconds, with what follows from them."""
    facts = dict(counts)
    facts["exposed_wait_s"] = facts.pop("wait_ns") / 1e9
    facts["read_s"] = facts.pop("read_ns") / 1e9  # of all threads together
    facts["written_s"] = facts.pop("written_ns") / 1e9
    facts["touch_hit_rate"] = _share(facts["faults_in_dram"], facts["faults"])
    facts["asked_hit_rate"] = _share(facts["asked_in_dram"], facts["asked_units"])
    return facts


class WithFlash(OneHost):
    """A space of this host with a flash tier."""

    def __init__(self, core: _core.Core, tiers: _core.Tiers) -> None:
        super().__init__(core)
        self._tiers = tiers

    def tier(self, address: int, nbytes: int) -> str:
        dram, flash, _ = self._tiers.tiers(address, nbytes)
        if dram and flash:
            return "mixed"
        return "flash" if flash else "dram"  # what was never written has no bytes to be anywhere

    def prefetch(self, address: int, nbytes: int, write: bool, priority: int) -> Transfer:
        return Transfer("prefetch", nbytes, self._ask(_core.Want.PREFETCH, address, nbytes, priority))

    def prefetch_many(self, ranges: Ranges, priority: int) -> Transfer:
        asked = self._tiers.ask_many(ranges.addresses, ranges.sizes, _checked(priority))
        parts = [_Asked(self._core, self._tiers, number) for number in asked]
        return Transfer("prefetch", ranges.nbytes, parts, ranges.kept)

    def demote(self, address: int, nbytes: int, tier: str, priority: int) -> Transfer:
        if not isinstance(tier, str) or tier != "flash":
            raise BadInput(f"demote({tier!r}): bytes in dram can be demoted to 'flash'")
        return Transfer("demote", nbytes, self._ask(_core.Want.DEMOTE, address, nbytes, priority))

    def pin(self, address: int, nbytes: int, priority: int) -> Pinned:
        parts = self._ask(_core.Want.PIN, address, nbytes, priority)
        return Pinned("pin", nbytes, parts, parts[0].release if parts else None)

    def buffer(self, pin: _core.Pin, offset: int, nbytes: int) -> tuple[Any, int]:
        if self._tiers.faults != "none":
            return pin, offset
        return _core.range_of(pin, offset, nbytes), 0

    def flush(self) -> Transfer:
        return Transfer("flush", 0, [_Asked(self._core, self._tiers, self._tiers.ask(_core.Want.FLUSH, 0, 0, 0))])

    def describe(self) -> dict[str, Any]:
        return _described(self._tiers.counts()) | {"faults_how": self._tiers.faults}

    def _ask(self, want: int, address: int, nbytes: int, priority: int) -> list[_Asked]:
        priority = _checked(priority)
        if not nbytes:
            return []
        return [_Asked(self._core, self._tiers, self._tiers.ask(want, address, nbytes, priority))]


def _checked(priority: int) -> int:
    if not -_MOST <= whole(priority, "a priority") <= _MOST:
        raise BadInput(f"a priority is between {-_MOST} and {_MOST}, got {priority}")
    return int(priority)


class _Asked(Asked):
    """What can be moved in the keeper's queue, taken out of it, and, if it is a pin, released."""

    def __init__(self, core: _core.Core, tiers: _core.Tiers, number: int) -> None:
        super().__init__(tiers, number)
        self._core, self._tiers = core, tiers  # the first keeps the mapping

    def prioritise(self, priority: int, /) -> None:
        self._tiers.reorder(self._number, max(-_MOST, min(_MOST, whole(priority, "a priority"))))

    def cancel(self) -> None:
        self._tiers.cancel(self._number)

    def release(self) -> None:
        self._tiers.unpin(self._number)
