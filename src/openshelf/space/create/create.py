"""Making a space: its files, its backing, its addresses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from openshelf import _core, _files
from openshelf._sizes import format_size, parse_size, whole
from openshelf.errors import AddressOccupied, BadInput, Mismatch, NameTaken
from openshelf.space import faults
from openshelf.space.create import registry
from openshelf.space.create.backing import SMALL_PAGE, backing_path, new_backing, page_size_of
from openshelf.space.create.flash import Flash, durable_at, parse_flash
from openshelf.space.create.shard import Shard

_MEMORY = ("tmpfs", "hugetlbfs", "devtmpfs", "unknown")
_GRAIN = 64 << 10  # room is made of these, or of larger pages


def check_base(root: Path, base: int, span: int, besides: str = "") -> int:
    """The base, if nothing of this user's is there; `besides` parts of the space that it is for."""
    base = whole(base, "base")
    if base % (2 << 20) or not 1 << 32 <= base <= (1 << 47) - span:
        raise BadInput(
            f"base {base:#x} is no place for {format_size(span)}: expected a multiple of 2 MiB from 4 GiB to 128 TiB"
        )
    for start, end in registry.taken_ranges(root, besides):
        if base < end and base + span > start:
            raise AddressOccupied(f"base {base:#x}: another space of yours has {start:#x} to {end:#x}; give another")
    return base


def _check_faults(place: Path, is_root: bool) -> None:
    """BadInput where the kernel tells nobody of touches: of files that are not memory."""
    kind = _files.mount_of(place)[0]
    if faults.wanted() and kind not in _MEMORY:
        where = f"OPENSHELF_DIR={place}" if is_root else f"backing={place}"
        raise BadInput(
            f"{where} is on {kind}: a space over several hosts or with a flash tier has to notice touches of its "
            "memory, and Linux tells of them on tmpfs and hugetlbfs only. Give a directory there, such as one in "
            f"/dev/shm, or do without such touches ({faults.VARIABLE}=off)"
        )


def make(
    root: Path,
    name: str,
    size: int,
    backing: str | os.PathLike[str] | None,
    group: str | None,
    base: int | None,
    reserve: str | int | None,
    shard: Shard | None = None,
    flash: Flash | None = None,
    temporary: bool = False,
) -> None:
    """Makes the directory of a space, or of one host's part of it, whole or not at all. Under the registry's lock."""
    data = None if backing is None else new_backing(name, size, backing, flash is not None)
    device = data is not None and registry.is_dax(data)
    page_size = SMALL_PAGE if data is None else page_size_of(data)
    if base is not None and data is not None and whole(base, "base") % page_size:
        raise BadInput(f"base {base:#x} does not begin a page of {data}, whose pages have {format_size(page_size)}")
    if (shard or flash) and not device:
        _check_faults(root if data is None else data.parent, data is None)
    registry.check_room(root, (size if data is None else 0) + (4 << 20))
    size = flash.nbytes if flash else size
    if flash and flash.durable and durable_at(flash.paths[0]):
        raise NameTaken(
            f"a durable space was left at {flash.paths[0]}; exist_ok=True restores it under the name {name!r}, "
            "or remove its files"
        )
    span = (
        parse_size(reserve)
        if reserve is not None
        else -(-max(registry.GRAIN, 2 * size) // registry.GRAIN) * registry.GRAIN
    )
    span = _span(span)
    link = registry.backing_link(root, name)
    occupied: AddressOccupied | None = None
    for choice in (
        [check_base(root, base, span, shard.space if shard else "")]
        if base is not None
        else registry.free_bases(root, span)
    ):
        directory = root / f".new-{os.getpid()}-{name}"
        directory.mkdir(mode=0o700)
        if shard:
            shard.write(directory)
        if temporary:
            _files.write_own(directory / registry.TEMPORARY, b"")
        if data is not None and not device:
            link.symlink_to(data)
        mode = 0o660 if group else 0o600
        where = "" if data is None else str(data)
        try:
            label = shard.space if shard else name
            _core.Core.create(
                str(directory), label, registry.boot_id(), where, size, choice, span, page_size, mode, device,
                flash is not None,
            )  # fmt: skip
            if flash:
                flash.make(directory, mode)
            if group:
                files = [directory / "control", directory / "members"]
                files += [directory / "data"] if data is None else [directory / "backing"]
                if data is not None and not device:  # who may open a device is the administrator's to say
                    files.append(data)
                registry.share_with(group, directory, files)
        except AddressOccupied as error:
            occupied = error
            registry.clear_debris(root)
            registry.check_address_limit(span)
            continue
        except BaseException:
            registry.clear_debris(root)
            raise
        directory.rename(root / name)
        return
    raise occupied or AddressOccupied(
        f"no range of {format_size(span)} of addresses is left for a space; remove some, reserve less, or give base="
    )


def check_same(
    path: Path,
    nbytes: int,
    dram: int,
    backing: str | os.PathLike[str] | None,
    group: str | None,
    base: int | None,
    reserve: str | int | None,
    flash: str | Sequence[str] | None,
    durable: bool,
    temporary: bool,
) -> None:
    """Mismatch if the space at `path`, which has room for `nbytes`, was made with others than are given."""
    there = registry.header(path)
    tiers = _core.tier_counts(str(path)) if (path / "tiers").exists() else None
    problems: list[str] = []

    def compare(what: str, wanted: object, found: object) -> None:
        if wanted != found:
            problems.append(f"{what} is {found}, not {wanted}")

    if tiers is not None:
        compare("dram", format_size(dram // _core.UNIT * _core.UNIT), format_size(int(tiers["dram_budget"])))
    else:
        grain = max(int(there.page_size), _GRAIN)
        wanted = -(-dram // grain) * grain
        if wanted not in (nbytes, there.made):  # it may have grown, and who made it may come again
            compare("dram", f"{format_size(wanted)} ({wanted} bytes)", f"{format_size(nbytes)} ({nbytes} bytes)")
    if flash is not None:
        asked = parse_flash(flash, path.name, dram, bool(tiers and tiers["durable"]), check_room=False)
        compare("flash", asked.paths, tiers["files"] if tiers else "none")
        if tiers and asked.paths == tiers["files"]:
            compare("the capacity of flash", format_size(asked.nbytes), format_size(int(tiers["capacity"])))
    if temporary:
        compare("temporary", True, registry.is_temporary(path))
    if durable:
        compare("durable", True, bool(tiers and tiers["durable"]))
    if backing is not None:
        compare("backing", str(backing_path(path.name, backing)), there.backing)
    if group is not None:
        compare("group", registry.group_number(group), path.stat().st_gid if path.stat().st_mode & 0o050 else "none")
    if base is not None:
        compare("base", hex(whole(base, "base")), hex(there.base))
    if reserve is not None:
        compare("reserve", format_size(_span(parse_size(reserve))), format_size(there.reserve))
    if problems:
        raise Mismatch(
            f"the space {path.name!r} exists, and is another than asked for: {'; '.join(problems)}; ask for that, "
            "open() it, or remove it first"
        )


def _span(reserve: int) -> int:
    """Whole GiB, and no less than a space needs."""
    return max(-(-reserve // (1 << 30)) * (1 << 30), _core.SMALLEST_RESERVE)


def restore(
    root: Path,
    name: str,
    flash: Flash,
    backing: str | os.PathLike[str] | None,
    base: int | None,
    reserve: str | int | None,
) -> None:
    """Makes the directory of a durable space again, as it was at its last flush. Under the registry's lock."""
    first, span, units, _ = _core.durable_geometry(flash.paths[0])
    if base is not None and whole(base, "base") != first:
        raise Mismatch(f"the durable space at {flash.paths[0]} has its base at {first:#x}, not at {base:#x}")
    if reserve is not None and _span(parse_size(reserve)) != span:
        raise Mismatch(
            f"the durable space at {flash.paths[0]} reserves {format_size(span)} of addresses, not "
            f"{format_size(_span(parse_size(reserve)))}"
        )
    check_base(root, first, span)
    data = None if backing is None else new_backing(name, units * _core.UNIT, backing, True)
    directory = root / f".new-{os.getpid()}-{name}"
    directory.mkdir(mode=0o700)
    if data is not None:
        registry.backing_link(root, name).symlink_to(data)
    where = "" if data is None else str(data)
    try:
        _core.restore_space(str(directory), name, registry.boot_id(), where, flash.paths, flash.capacity)
    except BaseException:
        registry.clear_debris(root)
        raise
    directory.rename(root / name)
