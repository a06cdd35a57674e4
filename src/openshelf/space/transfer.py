"""Transfer: bytes on their way. Several may be at once; each is waited for, polled, or awaited."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, runtime_checkable

from openshelf.errors import OpenshelfError
from openshelf.space.numbers import seconds
from openshelf.space.sent import refuse


class Part(Protocol):
    """What goes to or comes from one host."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_s: float, /) -> bool:
        """True when all of it has arrived, False when the time is over; negative: for ever. Raises what went wrong."""
        ...


@runtime_checkable
class Queued(Part, Protocol):
    """A part that waits its turn."""

    def prioritise(self, priority: int, /) -> None: ...
    def cancel(self) -> None: ...


class Numbered(Protocol):
    """Who answers for what it was asked, by number."""

    def done(self, number: int, /) -> bool: ...
    def wait(self, number: int, timeout_s: float, /) -> bool: ...


class Asked:
    """A part that a keeper was asked for. Its number is forgotten with the answer, so one at a time waits for that."""

    def __init__(self, answers: Numbered, number: int) -> None:
        self._answers, self._number = answers, number
        self._turn, self._over = threading.Lock(), False

    @property
    def done(self) -> bool:
        return self._over or self._answers.done(self._number)

    def wait(self, timeout_s: float, /) -> bool:
        start = time.monotonic()
        if not self._turn.acquire(timeout=-1 if timeout_s < 0 else min(timeout_s, threading.TIMEOUT_MAX)):
            return False
        try:
            if not self._over:
                left = timeout_s if timeout_s < 0 else max(0.0, timeout_s - (time.monotonic() - start))
                self._over = self._answers.wait(self._number, left)
            return self._over
        except OpenshelfError:
            self._over = True
            raise
        finally:
            self._turn.release()


class Transfer:
    """A get, put, prefetch or demotion under way. It holds what it reads and writes until it is done.

    Dropping it does not stop it; an error that nobody waited for is lost.
    """

    __slots__ = ("_error", "_kept", "_parts", "_what", "nbytes")

    def __init__(self, what: str, nbytes: int, parts: Sequence[Part] = (), kept: Any = None) -> None:
        self._what, self.nbytes = what, nbytes
        self._parts = tuple(parts)
        self._kept = kept if self._parts else None
        self._error: BaseException | None = None

    def __reduce__(self) -> Any:
        return refuse(f"a {type(self).__name__}", "wait for it in the process that began it")

    @property
    def done(self) -> bool:
        """Whether it is over, well or not; wait() tells which, without waiting."""
        return self._error is not None or all(part.done for part in self._parts)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the bytes are there; False when `timeout` seconds are over. HostLost if a host was lost."""
        limit = seconds(timeout)
        deadline = time.monotonic() + limit
        if self._error is not None:
            raise self._error
        try:
            for part in self._parts:
                if not part.wait(limit if limit < 0 else max(0.0, deadline - time.monotonic())):
                    return False
        except Exception as error:
            self._error = error  # every later wait says the same; what is still under way keeps its memory
            raise
        self._parts, self._kept = (), None
        return True

    def prioritise(self, priority: int) -> None:
        """Moves it before what has a lower priority and was not begun yet; where there is no queue, nothing."""
        for part in self._parts:
            if isinstance(part, Queued):
                part.prioritise(priority)

    def cancel(self) -> None:
        """Leaves out what was not begun yet: wait() raises Cancelled then. What has no queue is done all the same."""
        for part in self._parts:
            if isinstance(part, Queued):
                part.cancel()

    def __await__(self) -> Generator[Any, None, Transfer]:
        return self._finish().__await__()

    async def _finish(self) -> Transfer:
        if not self.done:
            import asyncio  # who awaits has it already; others need not wait for it at their start

            await asyncio.get_running_loop().run_in_executor(None, self.wait)
        self.wait(0)
        return self

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done" if self.done else "under way"
        return f"Transfer({self._what}, {self.nbytes} bytes, {state})"


class Pinned(Transfer):
    """A pin on bytes: they come into dram and stay there until it is released, or nobody has it any more."""

    __slots__ = ("_release",)

    def __init__(
        self, what: str, nbytes: int, parts: Sequence[Part] = (), release: Callable[[], None] | None = None
    ) -> None:
        super().__init__(what, nbytes, parts)
        self._release = release

    def release(self) -> None:
        """Lets the bytes go; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Pinned:
        self.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()
