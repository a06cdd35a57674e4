"""One arena for runs that come one after the other."""

from __future__ import annotations

from openshelf._core import DeviceArena

LEAST = 4096  # bytes: a page


class SharedArena:
    """Memory that is as large as the largest plan so far needs, and stays between runs."""

    def __init__(self) -> None:
        self._arena: DeviceArena | None = None

    def of(self, nbytes: int) -> DeviceArena:
        """An arena of at least so many bytes. No run may use it any more."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self._arena = None  # the old one goes first
            self._arena = arena_of(nbytes)
        return self._arena

    def release(self) -> None:
        """Gives the memory back, once no run has it."""
        self._arena = None


def arena_of(nbytes: int) -> DeviceArena:
    """An arena of so many bytes: a plan that moves nothing still needs one."""
    return DeviceArena(max(nbytes, LEAST))
