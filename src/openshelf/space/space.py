"""Space: one address space that processes share by plain loads and stores, on a host or on several."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, overload

import numpy as np

from openshelf import _core
from openshelf._files import mount_of
from openshelf._sizes import flag, parse_size
from openshelf.errors import (
    AddressOccupied,
    BadAddress,
    BadInput,
    Closed,
    Corrupt,
    NameTaken,
    OpenshelfError,
    WrongVersion,
)
from openshelf.space.array import Array, typed_part
from openshelf.space.copies import Copies, copies, ranges_of
from openshelf.space.create import registry
from openshelf.space.create.backing import check_room
from openshelf.space.create.create import check_same, make, restore
from openshelf.space.create.flash import durable_at, parse_flash
from openshelf.space.devices.dirty import dirty, write_back
from openshelf.space.folder import Default, Folder
from openshelf.space.hosts import join
from openshelf.space.hosts.urls import is_url
from openshelf.space.locality.base import Home
from openshelf.space.locality.flash import attach
from openshelf.space.native import Native
from openshelf.space.numbers import an_address, sizes_of
from openshelf.space.temporary import Stake, check_used, stake_of
from openshelf.space.transfer import Transfer

Somewhere = int | Array | Sequence[int | Array] | np.ndarray[Any, np.dtype[Any]]


class Where(NamedTuple):
    """What an address means: its segment, the offset there, the tier its bytes are in, the host that may write them
    now (None: several read them), the array there, and the host that is its home."""

    segment: int
    offset: int
    tier: str
    owner: str | None
    array: str | None
    host: str


class Space(Folder):
    """One address space, by name on this host, by URL over several. Every process that opens it sees the same bytes at
    the same addresses.

    Thread-safe. Closing forgets this handle; views stay valid and keep the space mapped until the last one goes.
    """

    def __init__(self, core: Native, stake: Stake | None = None) -> None:
        super().__init__(core, "", stake)

    @staticmethod
    def create(
        name: str,
        dram: str | int,
        *,
        flash: str | Sequence[str] | None = None,
        durable: bool = False,
        exist_ok: bool = False,
        temporary: bool = False,
        backing: str | os.PathLike[str] | None = None,
        group: str | None = None,
        base: int | None = None,
        reserve: str | int | None = None,
    ) -> Space:
        """Makes a space and opens it.

        `dram` is how much it can hold; memory is taken as arrays need it. `flash`, "/path/file:64GiB" or several of
        those, which are striped: it can hold that much, and `dram` is what of it is in memory at a time. `durable`:
        what was there at the last flush() survives restarts and power cuts; create it again then, with `exist_ok`.
        `temporary`: it goes with its last user; without a flash tier only. `backing`: a directory (a tmpfs mounted
        huge=advise, a hugetlbfs), a file, or a /dev/dax device, instead of /dev/shm. `group`: whose members may open
        it, by path. `base` and `reserve`: its addresses. NameTaken if it exists, unless `exist_ok`; then Mismatch if it
        was made with others than are given.
        """
        size = parse_size(dram)
        if group is not None:
            registry.group_number(group)
        if flag(durable, "durable") and flash is None:
            raise BadInput("durable=True needs a flash tier: flash='/path/file:64GiB'")
        if flag(temporary, "temporary") and (flash is not None or group is not None):
            raise BadInput("temporary=True goes with neither flash= nor group=: such a space is in memory, one user's")
        if flash is not None and group is not None:
            raise BadInput("group= with flash=: a space with a flash tier is one user's")
        if is_url(name):
            raise BadInput(f"{name!r}: a space over several hosts is made by opening it: Space.open(URL, contribute=)")
        registry.check_name(name)
        with registry.locked() as root:
            registry.clear_debris(root)
            path = root / name
            if path.exists():
                if flag(exist_ok, "exist_ok"):
                    space = _open(name, path, "rw")
                    there = int(space._native.stats()["bytes"])
                    check_same(path, there, size, backing, group, base, reserve, flash, durable, temporary)
                    return space
                raise NameTaken(f"the space {name!r} exists already; open it, remove it, or pass exist_ok=True")
            tier = None if flash is None else parse_flash(flash, name, size, durable)
            if tier and durable and exist_ok and durable_at(tier.paths[0]):
                restore(root, name, tier, backing, base, reserve)
            else:
                make(root, name, size, backing, group, base, reserve, None, tier, temporary)
            return _open(name, path, "rw")

    @staticmethod
    def temporary(
        dram: str | int,
        *,
        backing: str | os.PathLike[str] | None = None,
        base: int | None = None,
        reserve: str | int | None = None,
    ) -> Space:
        """Makes and opens a space that goes with its last user: `with Space.temporary("1GiB") as space:`.

        Its name is a new one. Other processes open it by `space.name`, or get it pickled."""
        name = f"tmp-{os.getpid()}-{secrets.token_hex(6)}"
        return Space.create(name, dram, temporary=True, backing=backing, base=base, reserve=reserve)

    @staticmethod
    def open(
        name: str | os.PathLike[str],
        mode: str = "rw",
        *,
        contribute: str | int | None = None,
        unit: str | int | None = None,
        hosts: str | os.PathLike[str] | None = None,
        replicas: int | None = None,
    ) -> Space:
        """Opens a space by name, by the path of its directory, or by URL. mode="r" maps it without write permission.

        By URL, `openshelf://HOST:PORT/NAME`: the first open on a host makes its part, with room for `contribute` (a
        larger one later grows it), kept coherent in steps of `unit` bytes (64 KiB; 4 KiB for what is fought over).
        `hosts`: the hosts file; by default what OPENSHELF_HOSTS names, or ~/.config/openshelf/hosts.yaml.
        `replicas`, 2 or 3, with `etcd://` and when the space is made: named arrays are on so many hosts.
        """
        if not isinstance(mode, str) or mode not in ("r", "rw"):
            raise BadInput(f"mode is 'r' or 'rw', got {mode!r}")
        if is_url(name):
            return Space(join.join(name, mode == "r", contribute, unit, hosts, replicas))
        if contribute is not None or unit is not None or hosts is not None or replicas is not None:
            raise BadInput(
                f"contribute=, unit=, hosts= and replicas= go with a URL, openshelf://HOST:PORT/NAME, not with {name!r}"
            )
        path = registry.find(name)
        if not registry.is_temporary(path):
            return _open(name, path, mode)
        with registry.locked(path.parent):
            check_used(name, registry.find_directory(str(name), path))
            return _open(name, path, mode)

    @staticmethod
    def remove(name: str | os.PathLike[str], *, hosts: str | os.PathLike[str] | None = None) -> None:
        """Takes a space away; by URL, this host's part of it, with all arrays that live there.

        Processes that have it open keep their views; every other call there raises Closed. By URL, NotPermitted while
        processes of this host have it open. By the path of a DAX device: it is nobody's any more; NotPermitted if this
        host knows of a space there.
        """
        if isinstance(name, str | os.PathLike) and "/" in os.fspath(name) and registry.is_dax(Path(name)):
            _core.free_device(os.fspath(name), registry.boot_id())
            return
        with registry.locked():
            path = _find(name, hosts)
            registry.check_disposable(path)
            if is_url(name):
                join.let_go(path)
            registry.dispose(path)

    @staticmethod
    def members(name: str | os.PathLike[str], *, hosts: str | os.PathLike[str] | None = None) -> int:
        """How many processes of this host have a space open, without opening it (by URL: the keeper among them); 0 for
        one too damaged to tell."""
        try:
            return _core.live_members(str(_find(name, hosts)), remote=False)
        except (Corrupt, WrongVersion):
            return 0

    @property
    def name(self) -> str:
        return str(self._native.stats()["name"])

    def at(self, address: int, shape: Any, dtype: Any) -> Array:
        """The typed range at a raw address, which some process passed on; holds the array that it lies in."""
        return typed_part(self._pin_at(address), address, sizes_of(shape), dtype, self)

    def _pin_at(self, address: int) -> _core.Pin:
        return self._native.at(an_address(address))

    def where(self, address: int) -> Where:
        """What an address of this space means."""
        self._native.check_usable()
        segment, offset = self._locality.where(an_address(address))
        try:
            name = Array(self._pin_at(address)).name
        except BadAddress:  # inside, but nothing is there
            name = None
        return Where(
            segment,
            offset,
            self._locality.tier(address, 1),
            self._locality.owner(address, 1),
            name,
            self._locality.home(address),
        )

    # Bytes by address, without faults

    @overload
    def get(self, name: str, default: Default | None = None) -> Array | Default | None: ...

    @overload
    def get(self, name: Somewhere, default: Any, nbytes: int | None = None) -> Transfer: ...

    def get(self, name: Any, default: Any = None, nbytes: int | None = None) -> Any:
        """By name: the array, or `default`. By address, `get(address, out)`: copies the bytes there into a buffer.

        `out` is a contiguous writable buffer, ndarray or CPU tensor; its size, or `nbytes`, says how much. A list of
        addresses (or Arrays) fills the rows of `out`. Returns a Transfer at once; several may be under way.
        """
        if isinstance(name, str):
            return super().get(name, default)
        return self._locality.get(_settled(copies(name, default, nbytes, write=True)))

    @overload
    def put(self, name: str | None, value: Any, *, replace: bool = True, home: Home = None) -> Array: ...

    @overload
    def put(self, name: Somewhere, value: Any) -> Transfer: ...

    def put(self, name: Any, value: Any, *, replace: bool = True, home: Home = None) -> Any:
        """By name: copies an array and publishes it whole (see Folder.put). By address, `put(address, data)`: writes
        bytes over what is there, rows of `data` to a list of addresses; returns a Transfer at once. It is no atomic
        step: who reads meanwhile may see a part.
        """
        if name is None or isinstance(name, str):
            return super().put(name, value, replace=replace, home=home)
        if home is not None or not replace:
            raise BadInput("home= and replace= go with a name; an address has its home already")
        return self._locality.put(_settled(copies(name, value, None, write=False)))

    def prefetch(
        self,
        where: Sequence[Array] | Sequence[int] | np.ndarray[Any, np.dtype[Any]],
        nbytes: int | None = None,
        *,
        priority: int = 0,
    ) -> Transfer:
        """Fetches many ranges at once to this host's memory, in this order: arrays and parts of arrays, or addresses
        with `nbytes` at each. One request, so that thousands of small ones cost little."""
        self._native.check_usable()
        ranges = ranges_of(where, nbytes)
        if dirty:
            for address, size in zip(ranges.addresses.tolist(), ranges.sizes.tolist(), strict=True):
                write_back(address, size)
        return self._locality.prefetch_many(ranges, priority)

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts, in the order of their numbers: whether up, room, round trip, misses and recalls.

        `state` is "up", "unopened" (it answers, but nobody there has opened the space) or "down".
        """
        self._native.check_usable()
        return self._locality.hosts()

    def grow(self, more: str | int) -> None:
        """Adds room, while others use the space."""
        size = parse_size(more)
        self._native.check_usable()
        backing = Path(str(self._native.stats()["backing"]))
        check_room(backing if backing.is_absolute() else Path(self._native.directory) / backing, size)
        self._native.grow(size)

    def flush(self) -> Transfer:
        """Of a durable space: everything written before is on flash when it is done, and is there after a power cut."""
        return self._locality.flush()

    def describe(self) -> dict[str, Any]:
        """Sizes, members, and what the machine gave for the pages."""
        self._native.check_usable()
        if not self._native.stats()["read_only"]:
            self._native.collect()
        stats = dict(self._native.stats())
        backing = str(stats["backing"])
        path = Path(backing) if backing.startswith("/") else Path(self._native.directory) / backing
        stats["backing"] = str(path)
        stats["file_system"] = "dax" if registry.is_dax(path) else mount_of(path)[0]
        stats["huge_bytes"] = _huge_bytes(int(stats["data_address"]))
        if tiers := self._locality.describe():
            stats["tiers"] = tiers
        return stats

    def check(self) -> dict[str, int]:
        """Walks all metadata and counts what should not be: leaked, missing or damaged blocks. For quiet moments."""
        return self._native.audit()

    def close(self) -> None:
        """Forgets this handle; a second call does nothing. A temporary space goes with the last one."""
        self._handle = None
        self._find = _closed
        self._stake = None

    def __enter__(self) -> Space:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "Space(closed)" if self._handle is None else f"Space({self.name!r})"


def spaces() -> list[dict[str, Any]]:
    """All spaces of this user: name, path, base, live members, room, the memory that it takes, whether it is temporary,
    or what is wrong with one. None is opened: files are looked at. A part of a space over several hosts has its `url`,
    its keeper is a member, and `remote_members` are processes of other hosts that use it."""
    found = []
    for name in registry.names(shards=True):
        path = registry.root() / name
        entry: dict[str, Any] = {"name": name, "path": str(path)}
        if url := registry.url_of(name):
            entry["url"] = url
        try:
            there = registry.header(path)
            members = _core.live_members(str(path), remote=False)
            entry.update(base=there.base, created_ns=there.created_ns, members=members)
            if url:
                entry["remote_members"] = max(0, _core.live_members(str(path)) - members)
            entry.update(registry.sizes(path, there))
            entry["temporary"] = registry.is_temporary(path)
        except (OpenshelfError, OSError) as error:  # a damaged one is listed too: the user must see it to remove it
            entry["error"] = str(error)
        found.append(entry)
    return found


def stale_spaces() -> list[dict[str, Any]]:
    """Those of spaces() that no living process has open. Damaged ones are not among them: who has those is unknown."""
    return [there for there in spaces() if there.get("members") == 0]


def _open(name: object, path: Path, mode: str) -> Space:
    try:
        core = _core.Core.open(str(path), mode == "r", registry.boot_id())
        core.check_usable()  # it may just have been removed
        if core.tiered and core.tiers is None:
            attach(core)
        return Space(core, stake_of(core, path))
    except AddressOccupied as error:
        registry.check_address_limit(registry.header(path).reserve)
        raise AddressOccupied(f"cannot map the space {name!r}: {error}; {_who_is_there(path)}") from None


def _settled(wanted: Copies) -> Copies:
    """What is about to be copied, once no dirty replica of this process has newer bytes of it."""
    if dirty:
        for address in wanted.addresses:
            write_back(address, wanted.row)
    return wanted


def _find(name: str | os.PathLike[str], hosts: str | os.PathLike[str] | None) -> Path:
    return join.directory_of(name, hosts) if is_url(name) else registry.find(name)


def _closed(name: str) -> _core.Pin | None:
    raise Closed("this Space was closed; open it again")


def _who_is_there(path: Path) -> str:
    """Names what is mapped where the space belongs."""
    there = registry.header(path)
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start < there.base + there.reserve and end > there.base:
            what = line.split(maxsplit=5)[5] if len(line.split()) > 5 else "anonymous memory"
            return (
                f"{what} is mapped at {start:#x} to {end:#x}; open it in a fresh process, or make it with another base="
            )
    return "it overlaps no mapping, but the kernel refused the addresses"


def _huge_bytes(address: int) -> int:
    """How many bytes of the data this process sees through pages larger than 4 KiB."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            inside = int(head.split("-")[0], 16) == address
        elif inside and head in ("ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"):
            total += int(line.split()[1]) * 1024
    return total
