"""Where keys and values are while they are not in the arena: host memory or flash, one buffer for each of a layer's.

A buffer has a row for each head of each sequence, with room for the longest context; in the arena rows are as long as
the bucket's. So a transfer is of the tokens that are there, row by row, and a longer bucket needs nothing new at home.

On flash whole sectors are written, straight from the arena; the tokens behind the last whole one are in memory, and go
there once there are enough of them: appending a token writes nothing for most tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openshelf._core import SECTOR, DeviceArena, Streamer, StreamFile, StreamTicket
from openshelf.offload.cache import cache_folder
from openshelf.offload.decoder.model import Shape
from openshelf.offload.move.mover import Traffic
from openshelf.offload.program.rates import Tier
from openshelf.offload.program.torch import arena_bytes, torch
from openshelf.offload.weights.files import Scratch, sectors


def grain(shapes: Sequence[Shape]) -> int:
    """Tokens of which a row's length is a multiple: these are whole sectors in every buffer."""
    return math.lcm(*(_sector_tokens(shape) for shape in shapes))


def _sector_tokens(shape: Shape) -> int:
    return math.lcm(SECTOR, shape.token_bytes) // shape.token_bytes


class KVTier:
    """Buffers for `longest` tokens, a multiple of grain(). For one thread.

    `past` is how many tokens are at home, `room` how long rows are in the arena: both are set before a run.
    """

    def __init__(
        self, shapes: Sequence[Shape], longest: int, home: Tier, arena: DeviceArena, folder: Path | str | None
    ) -> None:
        self.past = self.room = 0
        self._shapes, self._longest = shapes, longest
        self._owner, self._arena = arena, arena_bytes(arena)
        self._streamer = Streamer(arena, arena.address, arena.nbytes)
        self._moving: dict[int, tuple[int, list[StreamTicket]]] = {}
        self._file: StreamFile | None = None
        self._memory: DeviceArena | None = None
        sizes = [shape.rows * longest * shape.token_bytes for shape in shapes]
        if home == "flash":
            scratch = Scratch(cache_folder() if folder is None else Path(folder))
            self._places = [scratch.room(size, "the KV cache") for size in sizes]
            self._file = scratch.file
            self._tails = [
                torch.zeros((shape.rows, _sector_tokens(shape), shape.width), dtype=shape.dtype) for shape in shapes
            ]
        else:
            self._memory = DeviceArena(sectors(sum(sizes)))
            begins = [sum(sizes[:number]) for number in range(len(sizes))]
            self._places = [self._memory.address + begin for begin in begins]
            whole = arena_bytes(self._memory)
            self._tails = [  # all of it: what is in memory at home
                whole[begin : begin + size].view(shape.dtype).view(shape.rows, longest, shape.width)
                for begin, size, shape in zip(begins, sizes, shapes, strict=True)
            ]

    def begin_read(self, buffer: int, offset: int) -> None:
        """The tokens that are at home, into the arena."""
        whole = self.past if self._file is None else self._whole(buffer, self.past)
        self._moving[buffer] = (offset, self._move(self._streamer.read, buffer, offset, 0, whole))

    def wait(self, buffer: int) -> None:
        offset, tickets = self._moving.pop(buffer)
        for ticket in tickets:
            ticket.wait()
        if self._file is not None:
            whole = self._whole(buffer, self.past)
            self._rows(buffer, offset)[:, whole : self.past].copy_(self._tails[buffer][:, : self.past - whole])

    def begin_write(self, buffer: int, offset: int, tokens: int) -> None:
        """The tokens behind those at home, from the arena. They may be read there, and not be changed, until waited."""
        begin, end = self._whole(buffer, self.past), self.past + tokens
        whole = end if self._file is None else self._whole(buffer, end)
        if self._file is not None:
            self._tails[buffer][:, : end - whole].copy_(self._rows(buffer, offset)[:, whole:end])
        self._moving[buffer] = (offset, self._move(self._streamer.write, buffer, offset, begin, whole))

    def wait_written(self, buffer: int) -> None:
        _, tickets = self._moving.pop(buffer)
        for ticket in tickets:
            ticket.wait()

    def append(self, buffer: int, offset: int, tokens: int) -> None:
        """The tokens behind those at home, written through at once."""
        begin, end = self.past, self.past + tokens
        whole = self._whole(buffer, begin)
        if self._file is not None and self._whole(buffer, end) > whole:
            self.begin_write(buffer, offset, tokens)
            self.wait_written(buffer)
            return
        before = whole if self._file is not None else 0  # of what is in memory at home
        self._tails[buffer][:, begin - before : end - before].copy_(self._rows(buffer, offset)[:, begin:end])

    def abandon(self) -> bool:
        """After a run that ended half-way nothing is under way any more: whether all tokens of before it are at home.

        In memory they are. On flash those behind the last whole sector may have made way for new ones.
        """
        self._streamer.close()
        self._streamer = Streamer(self._owner, self._owner.address, self._owner.nbytes)
        self._moving.clear()
        return self._file is None or not self.past

    def lanes(self) -> dict[str, Traffic]:
        return {name: Traffic(*counts) for name, counts in self._streamer.counts().items()}

    def close(self) -> None:
        self._streamer.close()

    def _move(self, how: Any, buffer: int, offset: int, begin: int, end: int) -> list[StreamTicket]:
        """Tokens from `begin`, which is at a sector, to `end`, of all rows."""
        shape = self._shapes[buffer]
        if begin == end:
            return []
        skip, nbytes = begin * shape.token_bytes, (end - begin) * shape.token_bytes
        here, there = self.room * shape.token_bytes, self._longest * shape.token_bytes
        first = self._places[buffer] + skip
        return [
            how(self._file, first + row * there, offset + skip + row * here, nbytes, "keys or values")
            for row in range(shape.rows)
        ]

    def _whole(self, buffer: int, tokens: int) -> int:
        """Those of so many tokens that fill whole sectors."""
        grain = _sector_tokens(self._shapes[buffer])
        return tokens // grain * grain

    def _rows(self, buffer: int, offset: int) -> Any:
        shape = self._shapes[buffer]
        nbytes = shape.rows * self.room * shape.token_bytes
        return self._arena[offset : offset + nbytes].view(shape.dtype).view(shape.rows, self.room, shape.width)
