"""Space: one address space that processes of a host share by plain loads and stores."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from openshelf import _core
from openshelf.errors import AddressOccupied, BadAddress, BadInput, Closed, Mismatch, NameTaken, UnknownName
from openshelf.space import _places
from openshelf.space._array import Array, typed_part
from openshelf.space._dtypes import ElementType, element_type, of_numpy, stored
from openshelf.space._sizes import parse_size
from openshelf.space._sync import Barrier, Channel, Counter, Lock

_ARRAY, _LOCK, _BARRIER, _CHANNEL, _COUNTER = range(5)  # native Kind
_WORDS = of_numpy(np.dtype(np.int64))
_KINDS = ("array", "lock", "barrier", "channel", "counter")


class Entry(NamedTuple):
    """What a listing shows of an array."""

    name: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    address: int
    kind: str


class Where(NamedTuple):
    """What an address means: its segment, the offset there, the tier its bytes are in, and the host that owns them."""

    segment: int
    offset: int
    tier: str
    owner: str
    array: str | None


class Folder:
    """The arrays whose names begin with a prefix, by the rest of their names. A Space is the folder of all."""

    def __init__(self, core: _core.Core, prefix: str) -> None:
        self._handle: _core.Core | None = core
        self._prefix = prefix
        self._find = core.find

    @property
    def _native(self) -> _core.Core:
        if self._handle is None:
            raise Closed("this Space was closed; open it again")
        return self._handle

    def folder(self, name: str) -> Folder:
        """The folder below this one; it need not hold anything yet."""
        return Folder(self._native, f"{self._prefix}{name.strip('/')}/")

    def folders(self) -> list[str]:
        """Names of the folders directly in this one."""
        return sorted({name.split("/", 1)[0] for name in self if "/" in name})

    # Making

    def new(self, name: str | None, shape: Any, dtype: Any = "float32") -> Array:
        """A draft full of zeros; with `with`, published whole when the block ends, and dropped if it raises.

        Without a name: an array that lives as long as some process holds it. NameTaken if the name exists, now
        or at publication.
        """
        if name is not None and self._native.contains(self._prefix + name):
            raise NameTaken(
                f"{self._prefix + name!r} exists already; delete it, choose another name, or put() to replace it"
            )
        return self._make(name, shape, element_type(dtype))

    def zeros(self, name: str | None, shape: Any, dtype: Any = "float32") -> Array:
        """An array of zeros, published at once."""
        array = self.new(name, shape, dtype)
        return array if name is None else array.publish()

    def full(self, name: str | None, shape: Any, value: Any, dtype: Any = None) -> Array:
        """An array of one value, published when filled."""
        array = self.new(name, shape, dtype if dtype is not None else np.asarray(value).dtype)
        if array.element.code < 32:
            array.numpy()[...] = value
        else:
            array.torch().fill_(value)
        return array if name is None else array.publish()

    def put(self, name: str | None, value: Any, *, replace: bool = True) -> Array:
        """Copies an ndarray, a tensor or anything numpy takes, and publishes it whole.

        An array of that name is replaced at once for new look-ups; who holds the old one keeps it.
        """
        full_name = "" if name is None else _full_name(self._prefix, name)
        if type(value) is np.ndarray and value.flags.c_contiguous:
            array = value
        elif type(value).__module__.startswith("torch") and hasattr(value, "data_ptr"):
            tensor = value.detach().cpu().contiguous()
            element = element_type(tensor.dtype)
            nbytes = tensor.numel() * element.itemsize
            pin = self._native.put(
                tensor.data_ptr(),
                nbytes,
                element.code,
                _ARRAY,
                list(tensor.shape),
                element.descr,
                full_name,
                replace,
            )
            return Array(pin, self)
        else:
            array = np.ascontiguousarray(value).reshape(np.shape(value))
        element = of_numpy(array.dtype)
        # numpy exports no buffer of dtypes such as datetime64; those go by address, which takes longer to ask for.
        source: Any = array if element.code else array.ctypes.data
        pin = self._native.put(
            source, array.nbytes, element.code, _ARRAY, array.shape, element.descr, full_name, replace
        )
        return Array(pin, self)

    def _give_name(self, pin: _core.Pin, name: str) -> None:
        self._native.name(pin, _full_name(self._prefix, name))

    def _make(self, name: str | None, shape: Any, element: ElementType, kind: int = _ARRAY) -> Array:
        sizes = [int(shape)] if isinstance(shape, int | np.integer) else [int(size) for size in shape]
        if any(size < 0 for size in sizes):
            raise Mismatch(f"a shape has no negative sizes, got {tuple(sizes)}")
        nbytes = element.itemsize
        for size in sizes:
            nbytes *= size
        if nbytes >= 1 << 62:
            raise Mismatch(f"shape {tuple(sizes)} of {element.name} has more bytes than there are addresses")
        full_name = "" if name is None else _full_name(self._prefix, name)
        return Array(self._native.make(nbytes, element.code, kind, sizes, element.descr, full_name, True), self)

    # Finding

    def __getitem__(self, name: str) -> Array:
        pin = self._find(self._prefix + name)
        if pin is None:
            raise self._unknown(name)
        return Array(pin, self)

    def get(self, name: str, default: Array | None = None) -> Array | None:
        """The array, or `default` if there is none of that name."""
        pin = self._native.find(self._prefix + name)
        return default if pin is None else Array(pin, self)

    def __contains__(self, name: str) -> bool:
        return self._native.contains(self._prefix + name)

    def list(self, prefix: str = "") -> list[Entry]:
        """Everything here whose name begins with `prefix`, sorted, with sizes. Not a snapshot while others write."""
        found = self._native.list(self._prefix + prefix)
        return [
            Entry(name[len(self._prefix) :], nbytes, shape, stored(dtype, descr).name, address, _KINDS[kind])
            for name, nbytes, address, dtype, kind, shape, descr in found
            if not name.startswith("\x01")
        ]

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self.list()])

    def __len__(self) -> int:
        return len(self.list())

    def _unknown(self, name: str) -> UnknownName:
        known = list(self) if self._native.stats()["arrays"] <= 50_000 else []
        near = difflib.get_close_matches(name, known, 3)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        return UnknownName(f"there is no array {self._prefix + name!r}{hint}")

    # Changing

    def delete(self, name: str) -> None:
        """Takes the name away at once; the memory goes when the last view in any process does."""
        pin = self._native.find(self._prefix + name)
        if pin is not None and pin.kind == _CHANNEL:
            _core.channel_discard(pin)
        if not self._native.remove(self._prefix + name):
            raise self._unknown(name)

    def rename(self, name: str, to: str) -> None:
        """Gives an array another name in this folder: at every moment it has exactly one of the two."""
        try:
            self._native.rename(self._prefix + name, _full_name(self._prefix, to))
        except UnknownName:
            raise self._unknown(name) from None

    # Waiting for one another: made if absent, opened if there

    def lock(self, name: str) -> Lock:
        return Lock(self._shared(name, _LOCK, 64))

    def barrier(self, name: str, parties: int) -> Barrier:
        if not 1 <= parties <= 1024:
            raise BadInput(f"a barrier has 1 to 1024 parties, got {parties}")
        pin = self._shared(name, _BARRIER, _core.barrier_bytes(parties), lambda new: _core.barrier_init(new, parties))
        if _core.barrier_parties(pin) != parties:
            raise Mismatch(f"barrier {name!r} has {_core.barrier_parties(pin)} parties, not {parties}")
        return Barrier(pin)

    def counter(self, name: str) -> Counter:
        return Counter(self._shared(name, _COUNTER, 8))

    def channel(self, name: str, capacity: int = 64, message_bytes: int = 256) -> Channel:
        """A channel; if it exists, `capacity` and `message_bytes` are what it was made with."""
        if not 1 <= capacity <= 1 << 20 or not 1 <= message_bytes <= 1 << 20:
            raise BadInput(
                f"a channel has 1 to 1048576 messages of 1 to 1048576 bytes, got {capacity} of {message_bytes}"
            )
        total, slot = _core.channel_bytes(capacity, message_bytes)
        return Channel(self._shared(name, _CHANNEL, total, lambda new: _core.channel_init(new, capacity, slot)), self)

    def _shared(self, name: str, kind: int, nbytes: int, prepare: Any = None) -> _core.Pin:
        for _ in range(1000):  # made and deleted by others meanwhile, again and again
            pin = self._native.find(self._prefix + name)
            if pin is None:
                draft = self._make(name, -(-nbytes // 8), _WORDS, kind)
                if prepare is not None:
                    prepare(draft._pin)
                try:
                    return draft.publish()._pin
                except NameTaken:
                    continue
            if pin.kind != kind:
                raise Mismatch(f"{self._prefix + name!r} is a {_KINDS[pin.kind]}, not a {_KINDS[kind]}")
            return pin
        raise NameTaken(f"{self._prefix + name!r} comes and goes; others make and delete it all the time")


def _full_name(prefix: str, name: str) -> str:
    if not name or name[0] < " ":
        raise BadInput(
            f"{name!r} is not a name for an array; expected text that does not begin with a control character"
        )
    return prefix + name


class Space(Folder):
    """One address space on this host, by name. Every process that opens it sees the same bytes at the same addresses.

    Thread-safe. Closing forgets this handle; views stay valid and keep the space mapped until the last one goes.
    """

    def __init__(self, core: _core.Core) -> None:
        super().__init__(core, "")

    @staticmethod
    def create(
        name: str,
        dram: str | int,
        *,
        exist_ok: bool = False,
        backing: str | os.PathLike[str] | None = None,
        group: str | None = None,
        base: int | None = None,
        reserve: str | int | None = None,
    ) -> Space:
        """Makes a space and opens it.

        `dram` is how much it can hold; memory is taken as arrays need it. `backing`: a directory (a tmpfs mounted
        huge=advise, a hugetlbfs), a file, or a /dev/dax device, instead of /dev/shm. `group`: whose members may open
        it, by path. `base` and `reserve`: its addresses. NameTaken if it exists, unless `exist_ok`.
        """
        size = parse_size(dram)
        _places.check_name(name)
        with _places.registry() as root:
            _places.clear_debris(root)
            path = root / name
            if path.exists():
                if exist_ok:
                    return Space.open(name)
                raise NameTaken(f"the space {name!r} exists already; open it, remove it, or pass exist_ok=True")
            _create(root, name, size, backing, group, base, reserve)
        return Space.open(name)

    @staticmethod
    def open(name: str, mode: str = "rw") -> Space:
        """Opens a space by name, or by the path of its directory. mode="r" maps it without write permission."""
        if mode not in ("r", "rw"):
            raise BadInput(f"mode is 'r' or 'rw', got {mode!r}")
        path = _places.find(name)
        try:
            return Space(_core.Core.open(str(path), mode == "r", _places.boot_id()))
        except AddressOccupied as error:
            raise AddressOccupied(f"cannot map the space {name!r}: {error}; {_who_is_there(path)}") from None

    @staticmethod
    def remove(name: str) -> None:
        """Takes a space away. Processes that have it open keep their views; every other call there raises Closed."""
        with _places.registry():
            _places.dispose(_places.find(name))

    @property
    def name(self) -> str:
        return str(self._native.stats()["name"])

    def at(self, address: int, shape: Any, dtype: Any) -> Array:
        """The typed range at a raw address, which some process passed on; holds the array that it lies in."""
        sizes = (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(size) for size in shape)
        return typed_part(self._pin_at(address), address, sizes, dtype)

    def _pin_at(self, address: int) -> _core.Pin:
        if not 0 <= address < 1 << 64:
            raise BadAddress(f"{address} is no address: expected 64 bits without a sign")
        return self._native.at(address)

    def where(self, address: int) -> Where:
        """What an address of this space means."""
        stats = self._native.stats()
        offset = address - int(stats["data_address"])
        if not 0 <= offset < int(stats["bytes"]):
            self._pin_at(address)  # raises, and says where the space is
        try:
            name = Array(self._pin_at(address)).name
        except ValueError:  # BadAddress: inside, but nothing is there
            name = None
        return Where(0, offset, "dram", socket.gethostname(), name)

    def grow(self, more: str | int) -> None:
        """Adds room, while others use the space."""
        size = parse_size(more)
        self._native.check_usable()
        backing = Path(str(self._native.stats()["backing"]))
        _places.check_room(backing.parent if backing.is_absolute() else Path(self._native.directory), size)
        self._native.grow(size)

    def describe(self) -> dict[str, Any]:
        """Sizes, members, and what the machine gave for the pages."""
        self._native.check_usable()
        if not self._native.stats()["read_only"]:
            self._native.collect()
        stats = dict(self._native.stats())
        backing = str(stats["backing"])
        path = Path(backing) if backing.startswith("/") else Path(self._native.directory) / backing
        stats["backing"] = str(path)
        stats["file_system"] = "dax" if backing.startswith("/dev/dax") else _places.mount_of(path)[0]
        stats["huge_bytes"] = _huge_bytes(int(stats["data_address"]), int(stats["page_size"]))
        return stats

    def check(self) -> dict[str, int]:
        """Walks all metadata and counts what should not be: leaked, missing or damaged blocks. For quiet moments."""
        return self._native.audit()

    def close(self) -> None:
        """Forgets this handle; a second call does nothing."""
        self._handle = None
        self._find = _closed

    def __enter__(self) -> Space:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "Space(closed)" if self._handle is None else f"Space({self.name!r})"


def spaces() -> list[dict[str, Any]]:
    """All spaces of this user: name, path, base, live members, or what is wrong with one."""
    found = []
    for name in _places.names():
        path = _places.root() / name
        entry: dict[str, Any] = {"name": name, "path": str(path)}
        try:
            there = _places.header(path)
            entry.update(base=there.base, created_ns=there.created_ns, members=_core.live_members(str(path)))
        except Exception as error:  # a damaged one is listed too: the user must see it to remove it
            entry["error"] = str(error)
        found.append(entry)
    return found


def _closed(name: str) -> _core.Pin | None:
    raise Closed("this Space was closed; open it again")


def _create(
    root: Path,
    name: str,
    size: int,
    backing: str | os.PathLike[str] | None,
    group: str | None,
    base: int | None,
    reserve: str | int | None,
) -> None:
    data = ""
    page_size = 4096
    if backing is not None:
        path = Path(backing).absolute()
        if path.is_dir():
            path = path / f"openshelf-{os.getuid()}-{name}.data"
        if path.is_file() and path.stat().st_size:
            raise NameTaken(f"the backing file {path} exists already and is not empty; remove it or give another")
        page_size = _places.page_size_of(path)
        data = str(path)
        if not data.startswith("/dev/"):
            _places.check_room(path.parent, size)
    else:
        _places.check_room(root, size + (4 << 20))
    span = parse_size(reserve) if reserve is not None else max(_places.GRAIN, 2 * size)
    span = max(-(-span // (1 << 30)) * (1 << 30), _core.SMALLEST_RESERVE)
    span = -(-span // _places.GRAIN) * _places.GRAIN if reserve is None else span
    directory = root / f".new-{os.getpid()}-{name}"
    occupied: AddressOccupied | None = None
    for choice in [base] if base is not None else _places.free_bases(root, span):
        directory.mkdir(mode=0o700)
        try:
            _core.Core.create(
                str(directory),
                name,
                _places.boot_id(),
                data,
                size,
                choice,
                span,
                page_size,
                0o660 if group else 0o600,
            )
            if group:
                files = [directory / "control", directory / "members", Path(data) if data else directory / "data"]
                _places.share_with(group, directory, files)
        except AddressOccupied as error:
            occupied = error
            _places.clear_debris(root)
            continue
        except BaseException:
            _places.clear_debris(root)
            if data and not data.startswith("/dev/"):
                Path(data).unlink(missing_ok=True)
            raise
        directory.rename(root / name)
        return
    raise occupied or AddressOccupied("all address ranges for spaces are taken; remove some space, or give base=")


def _who_is_there(path: Path) -> str:
    """Names what is mapped where the space belongs."""
    there = _places.header(path)
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start < there.base + there.reserve and end > there.base:
            what = line.split(maxsplit=5)[5] if len(line.split()) > 5 else "anonymous memory"
            return (
                f"{what} is mapped at {start:#x} to {end:#x}; open it in a fresh process, or make it with another base="
            )
    return "it overlaps no mapping, but the kernel refused the addresses"


def _huge_bytes(address: int, page_size: int) -> int:
    """How many bytes of the data this process sees through pages larger than 4 KiB."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            inside = int(head.split("-")[0], 16) == address
        elif inside and head in ("ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"):
            total += int(line.split()[1]) * 1024
    return total
