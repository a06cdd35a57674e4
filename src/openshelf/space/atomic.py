"""Atomic operations on a word of an array, seen by every process at once."""

from __future__ import annotations

from typing import Any

from openshelf import _core
from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch
from openshelf.space.numbers import seconds
from openshelf.space.sent import refuse

_SUFFIX = {"int32": "_i4", "uint32": "_u4", "int64": "_i8", "uint64": "_u8"}
_RANGE = {"int32": (-(2**31), 2**31), "uint32": (0, 2**32), "int64": (-(2**63), 2**63), "uint64": (0, 2**64)}


class Atomic:
    """A 4- or 8-byte integer in shared memory. All operations are sequentially consistent; add wraps around."""

    __slots__ = ("_dtype", "_offset", "_pin", "_suffix")

    def __init__(self, pin: _core.Pin, offset: int, dtype: str) -> None:
        if dtype not in _SUFFIX:
            raise Mismatch(f"atomics are for int32, uint32, int64 and uint64, not {dtype}")
        self._pin, self._offset, self._dtype, self._suffix = pin, offset, dtype, _SUFFIX[dtype]
        self.load()  # checks alignment and bounds once, here

    def __reduce__(self) -> Any:
        return refuse("an Atomic", "send its array, and take it there: array.atomic(index)")

    @property
    def name(self) -> str:
        """Of its array."""
        return self._pin.name

    def __repr__(self) -> str:
        return f"Atomic({self._dtype} at byte {self._offset} of {self._pin.name or 'an unnamed array'!r})"

    def _check(self, value: int) -> int:
        value = whole(value, "the value of an atomic")
        low, high = _RANGE[self._dtype]
        if not low <= value < high:
            raise BadInput(f"{value} does not fit {self._dtype}")
        return value

    def load(self) -> int:
        return int(getattr(_core, "load" + self._suffix)(self._pin, self._offset))

    def store(self, value: int) -> None:
        getattr(_core, "store" + self._suffix)(self._pin, self._offset, self._check(value))

    def add(self, value: int) -> int:
        """Adds and returns what was there before."""
        return int(getattr(_core, "add" + self._suffix)(self._pin, self._offset, self._check(value)))

    def exchange(self, value: int) -> int:
        """Stores and returns what was there before."""
        return int(getattr(_core, "exchange" + self._suffix)(self._pin, self._offset, self._check(value)))

    def compare_and_swap(self, expected: int, desired: int) -> tuple[bool, int]:
        """Stores `desired` if `expected` is there; returns whether it did, and what it found."""
        done, found = getattr(_core, "cas" + self._suffix)(
            self._pin, self._offset, self._check(expected), self._check(desired)
        )
        return bool(done), int(found)

    def wait(self, expected: int, timeout: float | None = None) -> bool:
        """Sleeps while the (4-byte) word is `expected`; False when `timeout` seconds are over. Ctrl-C is heard."""
        if not self._suffix.endswith("4"):
            raise Mismatch("wait and wake need a 4-byte word (futexes are 32-bit)")
        word = self._check(expected) & 0xFFFFFFFF
        return _core.wait_word(self._pin, self._offset, word, seconds(timeout))

    def wake(self, count: int = 2**31 - 1) -> int:
        """Wakes up to `count` waiters and returns how many."""
        if not self._suffix.endswith("4"):
            raise Mismatch("wait and wake need a 4-byte word (futexes are 32-bit)")
        return _core.wake_word(self._pin, self._offset, max(0, min(whole(count, "a count"), 2**31 - 1)))
