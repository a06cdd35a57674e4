"""Handles that travel: a pickled one is a name and an address, and is opened again where it arrives.

What is pickled is a function of this package with texts and numbers. The space is named by its directory or URL, and by
its id: one that was removed and made again is not taken for it. What cannot be sent raises in the sender; what cannot
be opened arrives as Lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from openshelf import _core
from openshelf._dtypes import stored
from openshelf.errors import BadInput, NotPermitted, OpenshelfError, UnknownName
from openshelf.space.create import registry
from openshelf.space.hosts import join
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.hosts.urls import ETCD, EtcdUrl, Url, is_url, parse_url
from openshelf.space.lost import Lost
from openshelf.space.native import Native

if TYPE_CHECKING:
    from openshelf.space.array import Array
    from openshelf.space.folder import Folder
    from openshelf.space.space import Space

Address = tuple[str, str, int, bool]
"""Of a space: its directory or URL, the hosts file, its id, and whether it is open for reading only."""

_FEEDER = "QueueFeederThread"  # of multiprocessing.Queue: what raises there is printed, and nobody ever gets an answer


def send(open_again: Callable[..., Any], address: Callable[[], tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...]]:
    """What `__reduce__` returns; raises if it cannot be sent, where somebody hears it."""
    try:
        return open_again, address()
    except OpenshelfError as error:
        if threading.current_thread().name != _FEEDER:
            raise
        return Lost, (type(error).__name__, str(error))


def refuse(what: str, instead: str) -> tuple[Any, tuple[Any, ...]]:
    """`__reduce__` of what is never sent."""

    def address() -> NoReturn:
        raise BadInput(f"{what} cannot be pickled: {instead}")

    return send(Lost, address)


def arrive(handle: Callable[[], Any]) -> Any:
    """The handle, or what tells why there is none."""
    try:
        return handle()
    except OpenshelfError as error:
        return Lost(type(error).__name__, str(error))
    except Exception as error:
        return Lost("OpenshelfError", f"it could not be opened here: {type(error).__name__}: {error}")


class Handle:
    """What is pickled as an address, and not copied."""

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        raise BadInput(
            f"this {type(self).__name__.lstrip('_')} is a handle of what all processes share, and not copied; "
            "np.array(array) copies an array, and space.put(name, array) makes another of it"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()


# Spaces and folders


def address_of(native: Native) -> Address:
    native.check_usable()
    read_only, number = bool(native.stats()["read_only"]), _core.space_id(native.directory)
    if isinstance(native, Cluster):
        shard = native.shard
        url = EtcdUrl(shard.servers, shard.space) if shard.servers else Url(shard.hosts[shard.own], shard.space)
        return str(url), str(native.hosts_file), number, read_only
    return str(Path(native.directory).resolve()), "", number, read_only


def open_address(address: Address) -> Space:
    """The space that was sent, and no other that has its name."""
    from openshelf.space.space import Space  # which needs this module

    where, hosts, number, read_only = address
    given = hosts or None
    directory = join.directory_of(where, hosts) if is_url(where) else registry.find(where)
    if is_url(where) and (where.startswith(ETCD) or not directory.name.endswith(f"@{parse_url(where).host}")):
        number = 0  # sent by another host: its part has an id of its own
    _check(where, directory, number)
    mode, other = ("r", "rw") if read_only else ("rw", "r")
    try:
        space = Space.open(where, mode, hosts=given)
    except NotPermitted as error:
        try:
            space = Space.open(where, other, hosts=given)  # as this process has it open already
        except OpenshelfError:
            raise error from None
    _check(where, directory, number)
    space._native.check_usable()  # after the id: then it is that of what was opened
    return space


def _check(where: str, directory: Path, number: int) -> None:
    if number and _core.space_id(str(directory)) != number:
        raise UnknownName(f"the space {where} that was sent was removed, and another has its name now")


def open_folder(address: Address, prefix: str) -> Any:
    def opened() -> Folder:
        space = open_address(address)
        return space.folder(prefix) if prefix else space

    return arrive(opened)


# Arrays


def array_address(array: Array) -> tuple[Any, ...]:
    """For open_array."""
    folder, pin, name = array._folder, array._pin, array.name
    if pin.state == _core.State.DRAFT and pin.name:
        raise BadInput(f"the array {pin.name!r} is a draft and cannot be pickled: publish() it first")
    if folder is None or name is None:
        raise BadInput(
            "an array without a name cannot be pickled: nobody would hold it under way. publish(name) gives it one, a "
            "channel of its space sends it without, and np.array(array) is a copy that can be pickled"
        )
    element = array.element
    return (
        address_of(folder._native), name, pin.address, pin.nbytes, array._offset, array.shape, element.code,
        element.descr, array._is_read_only(),
    )  # fmt: skip


def open_array(
    space: Address,
    name: str,
    address: int,
    nbytes: int,
    offset: int,
    shape: tuple[int, ...],
    code: int,
    descr: str,
    read_only: bool,
) -> Any:
    def opened() -> Array:
        from openshelf.space.array import Array

        where = open_address(space)
        pin = where._native.find(name)
        if pin is None or (pin.address, pin.nbytes) != (address, nbytes):
            raise UnknownName(f"the array {name!r} was deleted or replaced while its handle was under way")
        found = Array(pin, where)
        if (offset, shape, code, descr) != (0, found.shape, pin.dtype, pin.descr):
            found = found._part(offset, shape, stored(code, descr))
        return found.read_only() if read_only and not found._is_read_only() else found

    return arrive(opened)
