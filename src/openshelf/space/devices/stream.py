"""Streams: what a device is asked to copy, in order, and what one stream waits for in another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

from openshelf.errors import BadInput, Mismatch
from openshelf.space.copies import flat_bytes
from openshelf.space.devices.block import Block
from openshelf.space.devices.flights import Flight, Flights
from openshelf.space.transfer import Transfer

if TYPE_CHECKING:
    from openshelf.space.devices.device import Device


class Stream(ABC):
    """Copies of a device that run in order; those of another stream may overlap with them. Thread-safe."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    @property
    @abstractmethod
    def device(self) -> Device: ...

    def copy(self, target: Any, source: Any) -> Transfer:
        """Copies between blocks, or a block and the host's memory: a buffer, an ndarray, a CPU tensor, an Array.

        Both have the same size. Returns at once; the Transfer is waited for, polled, awaited, or given to another
        stream's wait_for. The host's memory is kept, and must be left as it is, until the copy is done.
        """
        queue = self._flights.queue
        self.device.check()
        into = self._own(target) if isinstance(target, Block) else None
        out_of = self._own(source) if isinstance(source, Block) else None
        if into is not None and out_of is not None:
            _same_size(into.nbytes, "block", out_of.nbytes, "block")
            part = queue.copy_within(into.offset, out_of.offset, into.nbytes)
            return self._fly("within", into.nbytes, part, (into.taken, out_of.taken))
        if into is not None:
            data, _ = flat_bytes(source, write=False)
            _same_size(into.nbytes, "block", data.nbytes, "buffer")
            return self._fly("in", into.nbytes, queue.copy_in(into.offset, data), (into.taken, data))
        if out_of is not None:
            data, _ = flat_bytes(target, write=True)
            _same_size(out_of.nbytes, "block", data.nbytes, "buffer")
            return self._fly("out", out_of.nbytes, queue.copy_out(data, out_of.offset), (out_of.taken, data))
        raise Mismatch(
            f"a copy is from or to a Block of the device, got {type(target).__name__} and {type(source).__name__}"
        )

    def record(self) -> Transfer:
        """An event: done when everything that was given to this stream before is."""
        self.device.check()
        return Transfer("event", 0, [Flight(self._flights, self._flights.queue.mark())])

    def wait_for(self, event: Transfer) -> None:
        """What is given to this stream from now on waits for an event, or a copy, of another; the caller does not."""
        self.device.check()
        if not isinstance(event, Transfer):
            raise Mismatch(f"expected an event of record(), or a copy, got {event!r:.60}")
        for part in event._parts:
            if not isinstance(part, Flight) or not self.device.has(part.flights):
                raise BadInput(f"{event!r} is nothing of this device; wait() for it here, then copy")
            if part.flights is not self._flights:
                self._flights.queue.after(part.part)

    def _fly(self, direction: str, nbytes: int, part: Any, kept: Any) -> Transfer:
        return Transfer(f"copy {direction}", nbytes, [self._flights.fly(direction, nbytes, part, kept)])

    def _own(self, block: Block) -> Block:
        if block.device is not self.device:
            raise BadInput("the block is of another device; copy through the host's memory")
        block.check()
        return block


class OwnStream(Stream):
    """A stream that was asked for; its queue serves another one when it is dropped."""

    def __init__(self, device: Device, flights: Flights, idle: deque[Flights]) -> None:
        super().__init__(flights)
        self._device, self._idle = device, idle

    @property
    def device(self) -> Device:
        return self._device

    def __del__(self) -> None:
        self._idle.append(self._flights)


def _same_size(one: int, what: str, other: int, what_other: str) -> None:
    if one != other:
        raise Mismatch(f"the {what} has {one} bytes, the {what_other} {other}; a copy is of equal sizes")
