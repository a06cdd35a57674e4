"""Every exception Openshelf raises: one base, a subclass for each different thing a caller could do about it."""

from __future__ import annotations


class OpenshelfError(Exception):
    """Base of all errors of this package."""


class NameTaken(OpenshelfError):
    """The name exists already: choose another, delete it, or ask for replacement."""


class UnknownName(OpenshelfError, KeyError):
    """There is no such array, space or hardware name; the message lists the nearest ones."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0]) if self.args else ""


class NoRoom(OpenshelfError, MemoryError):
    """The space or device is full: delete, grow, or put less; the message says how much is free."""


class Mismatch(OpenshelfError, TypeError):
    """A dtype or shape is not what the call needs."""


class BadAddress(OpenshelfError, ValueError):
    """The address is outside the space or nothing is allocated there."""


class OutOfRange(OpenshelfError, IndexError):
    """There is no such row, element or block."""


class AddressOccupied(OpenshelfError):
    """Something else is mapped where this space has its base address."""


class WrongVersion(OpenshelfError):
    """The space was made by an incompatible version of Openshelf."""


class Corrupt(OpenshelfError):
    """Metadata failed its checks; nothing was changed."""


class NotPermitted(OpenshelfError, PermissionError):
    """The operating system, the file mode or a read-only space forbids the call."""


class Closed(OpenshelfError, ValueError):
    """The space, device or block was closed or released by this process, or the space removed by any."""


class TooManyMembers(OpenshelfError):
    """All member slots of the space are taken by living processes."""


class BrokenBarrier(OpenshelfError):
    """A process died, or gave up, while others waited at the barrier."""


class HostLost(OpenshelfError, ConnectionError):
    """A host died or is cut off: `host` says which, `range` the (address, bytes) that were wanted, if any."""

    def __init__(self, message: str, host: str = "", range: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.host = host
        self.range = range if range and range[1] else None


class NoAgreement(OpenshelfError, ConnectionError):
    """Hosts cannot agree on anything now: etcd, or a majority of it, does not answer, or no longer has what they agreed
    on. Try again when it does."""


class Refused(OpenshelfError, ConnectionError):
    """The other side has another key, version or hosts file, or what came was altered on the way."""


class FlashFailed(OpenshelfError, OSError):
    """A file of the flash tier is gone, or could not be read or written; the message says which, and what is in it."""


class Cancelled(OpenshelfError):
    """It was cancelled before it was done."""


class BadInput(OpenshelfError, ValueError):
    """An argument or a file is not of the expected form."""


class CaptureFailed(OpenshelfError):
    """A model does something that no program can hold; the message names the module and the source line."""


class MissingExtra(OpenshelfError, ImportError):
    """An optional package is needed; the message names the extra to install."""
