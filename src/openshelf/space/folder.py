"""Folder: arrays by name, made, found, listed, changed; and what processes wait for one another with."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, NamedTuple, TypeVar

import numpy as np

from openshelf import _core
from openshelf._dtypes import ElementType, element_type, of_numpy, stored
from openshelf._sizes import flag, format_size, text_of, whole
from openshelf.errors import BadInput, Closed, Mismatch, NameTaken, NoRoom, OpenshelfError, UnknownName
from openshelf.space.array import HIDDEN, Array
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.like_numpy import storable
from openshelf.space.locality.base import Home, Locality
from openshelf.space.locality.choose import locality_of
from openshelf.space.native import Maker, Native
from openshelf.space.numbers import array_name, sizes_of
from openshelf.space.sent import Handle, address_of, open_folder, send
from openshelf.space.sync import Barrier, Channel, Counter, Lock
from openshelf.space.temporary import Stake

_ARRAY, _LOCK, _BARRIER, _CHANNEL, _COUNTER, _TABLE, _SHARDED = map(
    int,
    (
        _core.Kind.ARRAY,
        _core.Kind.LOCK,
        _core.Kind.BARRIER,
        _core.Kind.CHANNEL,
        _core.Kind.COUNTER,
        _core.Kind.TABLE,
        _core.Kind.SHARDED,
    ),
)
_WORDS = of_numpy(np.dtype(np.int64))
_KINDS = tuple(kind.name.lower() for kind in _core.Kind)
_OPENED_BY = {
    "lock": ".lock({})",
    "barrier": ".barrier({}, parties)",
    "channel": ".channel({})",
    "counter": ".counter({})",
    "pool": "KVPool(space, layout, name={})",
    "table": "Table.open(space, {full})",
    "sharded": "Table.open(space, {full})",
}
Default = TypeVar("Default")


class Entry(NamedTuple):
    """What a listing shows of an array."""

    name: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    address: int
    kind: str


class Folder(Handle):
    """The arrays whose names begin with a prefix, by the rest of their names. A Space is the folder of all."""

    def __init__(self, core: Native, prefix: str, stake: Stake | None = None) -> None:
        self._handle: Native | None = core
        self._stake = stake
        self._prefix = prefix
        self._find = core.find

    @property
    def _native(self) -> Native:
        if self._handle is None:
            raise Closed("this Space was closed; open it again")
        return self._handle

    @property
    def _locality(self) -> Locality:
        return locality_of(self._native)

    def _on(self, home: Home) -> Maker:
        _check_home(home)
        return self._native if home is None else self._locality.on(home)

    def folder(self, name: str) -> Folder:
        """The folder below this one; it need not hold anything yet."""
        return Folder(self._native, f"{array_name(self._prefix, name).strip('/')}/", self._stake)

    def folders(self) -> list[str]:
        """Names of the folders directly in this one."""
        return sorted({name.split("/", 1)[0] for name in self if "/" in name})

    def __repr__(self) -> str:
        return f"Folder({self._prefix!r})"

    def __reduce__(self) -> Any:
        """Pickled as its address."""
        return send(open_folder, lambda: (address_of(self._native), self._prefix))

    # Making

    def new(self, name: str | None, shape: Any, dtype: Any = "float32", *, home: Home = None) -> Array:
        """A draft full of zeros; with `with`, published whole when the block ends, and dropped if it raises.

        Without a name: an array that lives as long as some process holds it. NameTaken if the name exists, now
        or at publication. `home`: the host whose memory it gets, as "host:port" or number; by default this one,
        or another if this one is full.
        """
        if name is not None and name in self:
            raise NameTaken(
                f"{self._prefix + name!r} exists already; delete it, choose another name, or put() to replace it"
            )
        return self._make(name, shape, element_type(dtype), home=home)

    def zeros(self, name: str | None, shape: Any, dtype: Any = "float32", *, home: Home = None) -> Array:
        """An array of zeros, published at once."""
        array = self.new(name, shape, dtype, home=home)
        return array if name is None else array.publish()

    def full(self, name: str | None, shape: Any, value: Any, dtype: Any = None, *, home: Home = None) -> Array:
        """An array of one value, published when filled."""
        array = self.new(name, shape, dtype if dtype is not None else _as_ndarray(value).dtype, home=home)
        try:
            if array.element.torch_only:
                array.torch().fill_(value)
            else:
                array.numpy()[...] = storable(value)
        except Exception as error:  # numpy's, torch's, or of any object's own __array__
            raise Mismatch(f"{value!r} is no value for {array.dtype} {array.shape}: {error}") from None
        return array if name is None else array.publish()

    def put(self, name: str | None, value: Any, *, replace: bool = True, home: Home = None) -> Array:
        """Copies an ndarray, a tensor or anything numpy takes, and publishes it whole.

        An array of that name is replaced at once for new look-ups; who holds the old one keeps it. `home` as in new().
        """
        full_name = "" if name is None else array_name(self._prefix, name)
        if type(value) is np.ndarray and value.flags.c_contiguous:
            array = value
        elif "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            return self._put_tensor(full_name, value, replace, home)
        elif isinstance(value, Array):
            value._settle()
            first = value.address - value._pin.address
            source: Any = memoryview(value._pin)[first : first + value.nbytes]
            return self._put_bytes(full_name, source, value.shape, value.element, replace, home)
        elif isinstance(value, Folder | np.ma.MaskedArray):
            raise Mismatch(
                f"a {type(value).__name__} cannot be put; put its arrays, or the data and the mask of a masked one"
            )
        else:
            array = _as_ndarray(value)
        element = of_numpy(array.dtype)
        # numpy exports no buffer of dtypes such as datetime64; those go by address, which takes longer to ask for.
        source = array if element.code else array.ctypes.data
        return self._put_bytes(full_name, source, array.shape, element, replace, home)

    def _put_tensor(self, full_name: str, value: Any, replace: bool, home: Home) -> Array:
        torch = sys.modules["torch"]
        if value.layout != torch.strided or value.device.type == "meta":
            raise Mismatch(
                f"a {value.layout} tensor on {value.device} has no plain bytes; make it dense and real first"
            )
        # A conjugate or negative view is a flag on other bytes: what is stored are the numbers that it shows.
        tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return self._put_bytes(full_name, tensor.data_ptr(), tensor.shape, element_type(tensor.dtype), replace, home)

    def _put_bytes(
        self, full_name: str, source: Any, shape: Any, element: ElementType, replace: bool, home: Home
    ) -> Array:
        nbytes = element.itemsize * math.prod(shape)
        put, replace = self._on(home).put, flag(replace, "replace")
        try:
            return Array(put(source, nbytes, element.code, _ARRAY, shape, element.descr, full_name, replace), self)
        except NoRoom as error:
            old = self._native.find(full_name) if full_name and replace else None
            if old is None:
                raise
            raise NoRoom(
                f"{error}. Replacing {full_name!r} needs room for the new array of {format_size(nbytes)} while the old "
                f"one of {format_size(old.nbytes)} is still there: delete it first, or write into it in place"
            ) from None

    def _flush(self, pin: _core.Pin) -> None:
        if isinstance(self._native, Cluster):
            self._native.flush(pin)
        else:
            self._locality.flush().wait()

    def _give_name(self, pin: _core.Pin, name: str) -> None:
        self._native.name(pin, array_name(self._prefix, name))

    def _make(self, name: str | None, shape: Any, element: ElementType, kind: int = _ARRAY, home: Home = None) -> Array:
        sizes = sizes_of(shape)
        nbytes = element.itemsize * math.prod(sizes)
        if nbytes >= 1 << 62:
            raise Mismatch(f"shape {sizes} of {element.name} has more bytes than there are addresses")
        full_name = "" if name is None else array_name(self._prefix, name)
        return Array(self._on(home).make(nbytes, element.code, kind, sizes, element.descr, full_name, True), self)

    # Finding

    def __getitem__(self, name: str) -> Array:
        try:
            pin = self._find(self._prefix + name)
        except TypeError:
            pin = self._find(array_name(self._prefix, name))  # says what is wrong with the name
        if pin is None:
            raise self._unknown(name)
        return self._array(pin, name)

    def get(self, name: str, default: Default | None = None) -> Array | Default | None:
        """The array, or `default` if there is none of that name. Mismatch if it names a lock or the like."""
        pin = self._native.find(array_name(self._prefix, name))
        return default if pin is None else self._array(pin, name)

    def _array(self, pin: _core.Pin, name: str) -> Array:
        if pin.kind:  # its bytes are not for users
            kind = _KINDS[pin.kind]
            how = _OPENED_BY[kind].format(repr(name), full=repr(self._prefix + name))
            raise Mismatch(f"{self._prefix + name!r} is of kind {kind}, not {_KINDS[_ARRAY]}; {how} opens it")
        return Array(pin, self)

    def __contains__(self, name: str) -> bool:
        return self._native.contains(array_name(self._prefix, name))

    def list(self, prefix: str = "") -> list[Entry]:
        """Everything here whose name begins with `prefix`, sorted, with sizes. Not a snapshot while others write."""
        found = self._native.list(self._prefix + text_of(prefix, "the beginning of a name"))
        return [
            Entry(name[len(self._prefix) :], nbytes, shape, stored(dtype, descr).name, address, _KINDS[kind])
            for name, nbytes, address, dtype, kind, shape, descr in found
            if not name.startswith(HIDDEN)
        ]

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self.list()])

    def __len__(self) -> int:
        return len(self.list())

    def keys(self) -> KeysView[str]:
        """All names here; like the folder itself, no snapshot while others write."""
        return KeysView(self)

    def values(self) -> ValuesView[Array]:
        """The arrays here, each looked up when it is its turn. What was deleted meanwhile is left out, and so are locks
        and the like."""
        return _Values(self)

    def items(self) -> ItemsView[str, Array]:
        """Names with what they name, likewise."""
        return _Items(self)

    def _unknown(self, name: str) -> UnknownName:
        array_name(self._prefix, name)  # raises if it is no name at all
        known = list(self) if self._native.stats()["arrays"] <= 2_000 else []
        near = difflib.get_close_matches(name, known, 3)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        missing = self._locality.missing()
        where = f" on the hosts that are up; {', '.join(missing)} did not answer" if missing else ""
        return UnknownName(f"there is no array {self._prefix + name!r}{where}{hint}")

    # Changing

    def __setitem__(self, name: str, value: Any) -> None:
        """As put(): a copy is published, in place of an array of that name."""
        full_name = array_name(self._prefix, name)
        if isinstance(value, Array) and value.nbytes == value._pin.nbytes:
            there = self._native.find(full_name)
            if there is not None and there.address == value.address:
                return  # space[name] += 1 was done in place
        Folder.put(self, name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def delete(self, name: str) -> None:
        """Takes the name away at once; the memory goes when the last view in any process does."""
        full_name = array_name(self._prefix, name)
        try:
            found = self._native.remove(full_name)
        except BadInput:  # a channel: arrays may be under way in it; a table: its rows are arrays of their own
            pin = self._native.find(full_name)
            if pin is not None and pin.kind == _CHANNEL:
                _core.channel_discard(pin)
            elif pin is not None and pin.kind == _TABLE:
                if not isinstance(pin, _core.Pin):
                    raise BadInput(f"{full_name!r} is a table of another host: delete it there") from None
                _core.table_discard(pin)
                return
            elif pin is not None and pin.kind == _SHARDED and isinstance(self._native, Cluster):
                self._native.discard_shards(pin)
            found = pin is not None and self._native.remove(full_name, pin)
        if not found:
            raise self._unknown(name)

    def rename(self, name: str, to: str) -> None:
        """Gives an array another name in this folder: at every moment it has exactly one of the two."""
        try:
            self._native.rename(array_name(self._prefix, name), array_name(self._prefix, to))
        except UnknownName:
            raise self._unknown(name) from None

    # Waiting for one another: made if absent, opened if there

    def lock(self, name: str, *, home: Home = None) -> Lock:
        return Lock(self._shared(name, _LOCK, 64, home))

    def barrier(self, name: str, parties: int, *, home: Home = None) -> Barrier:
        parties = whole(parties, "the number of parties")
        if not 1 <= parties <= 1024:
            raise BadInput(f"a barrier has 1 to 1024 parties, got {parties}")
        nbytes = _core.barrier_bytes(parties)
        pin = self._shared(name, _BARRIER, nbytes, home, lambda new: _core.barrier_init(new, parties))
        if _core.barrier_parties(pin) != parties:
            raise Mismatch(f"barrier {name!r} has {_core.barrier_parties(pin)} parties, not {parties}")
        return Barrier(pin)

    def counter(self, name: str, *, home: Home = None) -> Counter:
        return Counter(self._shared(name, _COUNTER, 8, home))

    def channel(
        self, name: str, capacity: int | None = None, message_bytes: int | None = None, *, home: Home = None
    ) -> Channel:
        """A channel, of 64 messages of 256 bytes unless others are given; Mismatch if it exists with others."""
        given = capacity is not None, message_bytes is not None
        capacity = 64 if capacity is None else whole(capacity, "a capacity")
        message_bytes = 256 if message_bytes is None else whole(message_bytes, "the size of a message")
        if not 1 <= capacity <= 1 << 20 or not 1 <= message_bytes <= 1 << 20:
            raise BadInput(
                f"a channel has 1 to 1048576 messages of 1 to 1048576 bytes, got {capacity} of {message_bytes}"
            )
        total, message_room = _core.channel_bytes(capacity, message_bytes)
        pin = self._shared(name, _CHANNEL, total, home, lambda new: _core.channel_init(new, capacity, message_room))
        has, longest = _core.channel_facts(pin)
        if given[0] and has != capacity:
            raise Mismatch(f"channel {name!r} has room for {has} messages, not {capacity}")
        if given[1] and _core.channel_bytes(1, longest)[1] != message_room:  # sizes are rounded up
            raise Mismatch(f"channel {name!r} has messages of at most {longest} bytes, not {message_bytes}")
        return Channel(pin, self)

    def _shared(self, name: str, kind: int, nbytes: int, home: Home, prepare: Any = None) -> _core.Pin:
        full_name = array_name(self._prefix, name)
        _check_home(home)
        for _ in range(1000):  # made and deleted by others meanwhile, again and again
            pin = self._native.find(full_name)
            if pin is None:
                draft = self._make(name, -(-nbytes // 8), _WORDS, kind, home)
                if prepare is not None:
                    prepare(draft._pin)
                try:
                    return draft.publish()._pin
                except NameTaken:
                    continue
            if pin.kind != kind:
                raise Mismatch(f"{full_name!r} is of kind {_KINDS[pin.kind]}, not {_KINDS[kind]}")
            if kind == _CHANNEL and _core.channel_deleted(
                pin
            ):  # by a process that was killed before it took the name away
                self._native.remove(full_name, pin)
                continue
            if home is not None and self._locality.home(pin.address) != (wanted := self._locality.host_of(home)):
                raise Mismatch(f"{full_name!r} lives on {self._locality.home(pin.address)}, not on {wanted}")
            return pin
        raise NameTaken(f"{full_name!r} comes and goes; others make and delete it all the time")


def _as_ndarray(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """What numpy makes of it, contiguous."""
    try:
        array = np.asarray(value)
        return np.ascontiguousarray(array).reshape(array.shape)  # which has a dimension more of a number
    except OpenshelfError:
        raise
    except Exception as error:  # of any object's own __array__, too
        raise Mismatch(f"numpy makes no array of this {type(value).__name__}: {error}") from None


def _check_home(home: Home) -> None:
    if home is not None and not isinstance(home, str | int | np.integer):
        raise Mismatch(f"home is a host's name or number, got {home!r}")


class _Items(ItemsView[str, Array]):
    _mapping: Folder

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        found = ((name, self._mapping._native.find(self._mapping._prefix + name)) for name in self._mapping)
        return ((name, Array(pin, self._mapping)) for name, pin in found if pin is not None and pin.kind == _ARRAY)


class _Values(ValuesView[Array]):
    _mapping: Folder

    def __iter__(self) -> Iterator[Array]:
        return (array for _, array in self._mapping.items())
