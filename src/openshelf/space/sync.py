"""Lock, Barrier, Counter and Channel: named, shared by the processes of a space, whole after any of them is killed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from openshelf import _core
from openshelf._sizes import text_of
from openshelf.errors import BadInput, Mismatch, UnknownName
from openshelf.space.array import Array
from openshelf.space.atomic import Atomic
from openshelf.space.numbers import seconds
from openshelf.space.sent import refuse

if TYPE_CHECKING:
    from openshelf.space.folder import Folder


_INSTEAD = "send its space, and take it there: space.{}"


class Lock:
    """A mutual exclusion lock. If its holder dies, the next one gets it and finds `previous_died` true."""

    __slots__ = ("_pin", "previous_died")

    def __init__(self, pin: _core.Pin) -> None:
        self._pin = pin
        self.previous_died = False

    def __reduce__(self) -> Any:
        return refuse("a Lock", _INSTEAD.format("lock(name)"))

    def __repr__(self) -> str:
        return f"Lock({self._pin.name!r})"

    def acquire(self, timeout: float | None = None) -> bool:
        """Waits for the lock; False when `timeout` seconds are over. The process holds it: any thread may release."""
        died = _core.lock_take(self._pin, seconds(timeout))
        if died is None:
            return False
        self.previous_died = died
        return True

    def release(self) -> None:
        if not _core.lock_drop(self._pin):
            raise BadInput("this process does not hold the lock")

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return _core.lock_owned(self._pin)

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Barrier:
    """A meeting point of `parties` waiters. A waiter that dies breaks it: the others get BrokenBarrier, not silence."""

    __slots__ = ("_pin",)

    def __init__(self, pin: _core.Pin) -> None:
        self._pin = pin

    def __reduce__(self) -> Any:
        return refuse("a Barrier", _INSTEAD.format("barrier(name, parties)"))

    def __repr__(self) -> str:
        return f"Barrier({self._pin.name!r})"

    @property
    def parties(self) -> int:
        return _core.barrier_parties(self._pin)

    @property
    def broken(self) -> bool:
        return _core.barrier_broken(self._pin)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for all; returns each waiter's number, 0 for the last to come. One that never comes needs a timeout."""
        return _core.barrier_wait(self._pin, seconds(timeout))

    def reset(self) -> None:
        """Makes a broken barrier usable again."""
        _core.barrier_reset(self._pin)


class Counter:
    """A shared 64-bit counter."""

    __slots__ = ("_word",)

    def __init__(self, pin: _core.Pin) -> None:
        self._word = Atomic(pin, 0, "int64")

    def __reduce__(self) -> Any:
        return refuse("a Counter", _INSTEAD.format("counter(name)"))

    def __repr__(self) -> str:
        return f"Counter({self._word.name!r})"

    def add(self, value: int = 1) -> int:
        """Adds and returns the new value."""
        return self._word.add(value) + value

    @property
    def value(self) -> int:
        return self._word.load()

    @value.setter
    def value(self, value: int) -> None:
        self._word.store(value)


class Channel:
    """A bounded queue of small messages or arrays; any process may send or receive, each message reaches one receiver.

    A message that a receiver took and died with is gone; all others stay. A named array is sent as its name; an
    unnamed one is kept alive by the channel and then by its receiver.
    """

    __slots__ = ("_folder", "_pin")

    def __init__(self, pin: _core.Pin, folder: Folder) -> None:
        self._pin = pin
        self._folder = folder

    def __reduce__(self) -> Any:
        return refuse("a Channel", _INSTEAD.format("channel(name)"))

    def __repr__(self) -> str:
        return f"Channel({self._pin.name!r})"

    @property
    def capacity(self) -> int:
        return _core.channel_facts(self._pin)[0]

    @property
    def message_bytes(self) -> int:
        """The longest message."""
        return _core.channel_facts(self._pin)[1]

    def __len__(self) -> int:
        return _core.channel_length(self._pin)

    def send(self, message: bytes | bytearray | memoryview | str | Array, timeout: float | None = None) -> bool:
        """Waits for room; False when `timeout` seconds are over."""
        if isinstance(message, Array):
            if message.address != message._pin.address or message.nbytes != message._pin.nbytes:
                raise BadInput("send the whole array; a part has no life of its own")
            if not self._folder._locality.together(self._pin.address, message.address):
                raise BadInput(
                    f"the array lives on {message.home}, the channel elsewhere; send the name of the array as text, or "
                    "make one of them with home="
                )
            name = message.name
            return _core.channel_send(self._pin, (name or "").encode(), message._pin, seconds(timeout))
        if not isinstance(message, bytes | bytearray | memoryview | str):
            raise Mismatch(
                f"a message is bytes, text or an Array, got {type(message).__name__}; put() other things first"
            )
        payload = text_of(message, "a message").encode() if isinstance(message, str) else bytes(message)
        return _core.channel_send(self._pin, payload, None, seconds(timeout))

    def receive(self, timeout: float | None = None) -> bytes | Array | None:
        """The next message, or None when `timeout` seconds are over. UnknownName if its array was deleted under way."""
        got = _core.channel_receive(self._pin, seconds(timeout))
        if got is None:
            return None
        kind, payload, pin = got
        if kind == 0:
            return payload
        if pin is None:
            raise UnknownName(f"the array {payload.decode()!r} was deleted or replaced while its handle was under way")
        return Array(pin, self._folder)
