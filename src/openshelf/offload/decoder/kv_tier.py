"""Where a cache is while it is not in the arena: host memory or flash, one buffer for each of its states.

A buffer of a state that grows has rows (a head of a sequence each) of tokens; in the arena rows are as long as the
bucket's. So a transfer is of the tokens that are there, row by row, and a longer bucket needs nothing new at home. Of a
window only the last tokens are at home, in rows that begin anew at their end, and only these are brought in.

On flash whole sectors are written, straight from the arena; the tokens behind the last whole one are in memory, and go
there once there are enough of them: appending a token writes nothing for most tokens.

A state that keeps its shape is written whole, to the other of two places in host memory. It is the one that counts when
the run has come to its end, so that a run that fails loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena, Streamer, StreamFile, StreamTicket
from openshelf.offload.cache import cache_folder
from openshelf.offload.decoder.state import State
from openshelf.offload.move.mover import Traffic
from openshelf.offload.program.rates import Tier
from openshelf.offload.program.torch import arena_bytes, torch
from openshelf.offload.weights.files import Scratch, sectors


class KVTier:
    """Buffers for `longest` tokens, of which up to `tokens` are appended at once to those of a window. For one thread.

    `past` is how many tokens are at home, `firsts` are the tokens with which rows in the arena begin, `rooms` how long
    they are there: begin() sets them before a run.
    """

    def __init__(
        self,
        states: Sequence[State],
        longest: int,
        tokens: int,
        home: Tier,
        arena: DeviceArena,
        folder: Path | str | None,
    ) -> None:
        self.past, self.firsts, self.rooms = 0, [0] * len(states), [0] * len(states)
        self._states, self._lengths = states, [state.held(longest, tokens) for state in states]
        self._owner, self._arena = arena, arena_bytes(arena)
        self._streamer = Streamer(arena, arena.address, arena.nbytes)
        self._moving: dict[int, tuple[int, list[StreamTicket]]] = {}
        self._file: StreamFile | None = None
        self._other = [False] * len(states)  # which of two places counts
        self._written: set[int] = set()
        scratch = Scratch(cache_folder() if folder is None else Path(folder)) if home == "flash" else None
        on_flash = [scratch is not None and state.grows for state in states]
        sizes = [
            sectors(state.rows * length * state.token_bytes) if state.grows else 2 * sectors(state.token_bytes)
            for state, length in zip(states, self._lengths, strict=True)
        ]
        self._memory = DeviceArena(
            max(4096, sum(size for size, flash in zip(sizes, on_flash, strict=True) if not flash))
        )
        self._places: list[int] = []
        self._tails: list[Any] = []  # what is in memory at home: all of it, or the tokens that fill no sector yet
        whole, begin = arena_bytes(self._memory), 0
        for state, length, size, flash in zip(states, self._lengths, sizes, on_flash, strict=True):
            if flash:
                assert scratch is not None
                self._places.append(scratch.room(size, "the KV cache"))
                self._tails.append(torch.zeros((state.rows, state.sector_tokens, state.width), dtype=state.dtype))
                continue
            self._places.append(self._memory.address + begin)
            part = whole[begin : begin + size]
            if state.grows:
                tokens_there = part[: state.rows * length * state.token_bytes].view(state.dtype)
                self._tails.append(tokens_there.view(state.rows, length, state.width))
            else:
                self._tails.append(part.view(2, size // 2)[:, : state.token_bytes])
            begin += size
        self._file = None if scratch is None else scratch.file

    def begin(self, past: int, firsts: list[int], rooms: list[int]) -> None:
        """The next run finds `past` tokens."""
        self.past, self.firsts, self.rooms = past, firsts, rooms
        self._written.clear()

    def begin_read(self, buffer: int, offset: int) -> None:
        """What is at home, into the arena."""
        state = self._states[buffer]
        if state.grows:
            whole = self.past if not self._flash(buffer) else state.down(self.past)
            first = min(self.firsts[buffer], whole)
            self._moving[buffer] = (offset, self._move(self._streamer.read, buffer, offset, first, whole))
        else:
            place = self._places[buffer] + self._other[buffer] * self._half(buffer)
            ticket = self._streamer.read(None, place, offset, state.token_bytes, state.name)
            self._moving[buffer] = (offset, [ticket])

    def wait(self, buffer: int) -> None:
        offset, tickets = self._moving.pop(buffer)
        for ticket in tickets:
            ticket.wait()
        if self._flash(buffer):
            whole, first = self._states[buffer].down(self.past), self.firsts[buffer]
            rows = self._rows(buffer, offset)[:, whole - first : self.past - first]
            rows.copy_(self._tails[buffer][:, : self.past - whole])

    def begin_write(self, buffer: int, offset: int, tokens: int) -> None:
        """What is new, from the arena. It may be read there, and not be changed, until waited for."""
        state = self._states[buffer]
        if not state.grows:
            place = self._places[buffer] + (not self._other[buffer]) * self._half(buffer)
            ticket = self._streamer.write(None, place, offset, state.token_bytes, state.name)
            self._moving[buffer] = (offset, [ticket])
            self._written.add(buffer)
            return
        end = self.past + tokens
        begin, whole = max(state.down(self.past), state.first(end)), end
        if self._flash(buffer):
            whole, first = state.down(end), self.firsts[buffer]
            self._tails[buffer][:, : end - whole].copy_(self._rows(buffer, offset)[:, whole - first : end - first])
        self._moving[buffer] = (offset, self._move(self._streamer.write, buffer, offset, begin, whole))

    def wait_written(self, buffer: int) -> None:
        _, tickets = self._moving.pop(buffer)
        for ticket in tickets:
            ticket.wait()

    def append(self, buffer: int, offset: int, tokens: int) -> None:
        """What is new, written through at once."""
        state = self._states[buffer]
        if not state.grows:
            now = self._arena[offset : offset + state.token_bytes]
            self._tails[buffer][int(not self._other[buffer])].copy_(now)
            self._written.add(buffer)
            return
        begin, end = self.past, self.past + tokens
        whole, first = state.down(begin), self.firsts[buffer]
        if tokens > 1 or (self._flash(buffer) and state.down(end) > whole):
            self.begin_write(buffer, offset, tokens)
            self.wait_written(buffer)
            return
        at = begin - whole if self._flash(buffer) else begin % self._lengths[buffer]
        self._tails[buffer][:, at].copy_(self._rows(buffer, offset)[:, begin - first])

    def commit(self) -> None:
        """The run has come to its end: what it has written counts."""
        for buffer in self._written:
            self._other[buffer] = not self._other[buffer]
        self._written.clear()

    def abandon(self) -> bool:
        """After a run that ended half-way nothing is under way any more: whether all tokens of before it are at home.

        In memory they are. On flash those behind the last whole sector may have made way for new ones.
        """
        self._streamer.close()
        self._streamer = Streamer(self._owner, self._owner.address, self._owner.nbytes)
        self._moving.clear()
        self._written.clear()
        return self._file is None or not self.past

    def lanes(self) -> dict[str, Traffic]:
        return {name: Traffic(*counts) for name, counts in self._streamer.counts().items()}

    def close(self) -> None:
        self._streamer.close()

    def _flash(self, buffer: int) -> bool:
        return self._file is not None and self._states[buffer].grows

    def _half(self, buffer: int) -> int:
        return sectors(self._states[buffer].token_bytes)

    def _move(self, how: Any, buffer: int, offset: int, begin: int, end: int) -> list[StreamTicket]:
        """Tokens from `begin`, which is at a sector, to `end`, of all rows: in two parts where rows begin anew."""
        state, length = self._states[buffer], self._lengths[buffer]
        turn = end // length * length
        parts = [(begin, turn), (turn, end)] if begin < turn < end else [(begin, end)]
        here, there = self.rooms[buffer] * state.token_bytes, length * state.token_bytes
        return [
            how(
                self._file if self._flash(buffer) else None,
                self._places[buffer] + first % length * state.token_bytes + row * there,
                offset + (first - self.firsts[buffer]) * state.token_bytes + row * here,
                (last - first) * state.token_bytes,
                "keys or values",
            )
            for first, last in parts
            if first < last
            for row in range(state.rows)
        ]

    def _rows(self, buffer: int, offset: int) -> Any:
        state, room = self._states[buffer], self.rooms[buffer]
        nbytes = state.rows * room * state.token_bytes
        return self._arena[offset : offset + nbytes].view(state.dtype).view(state.rows, room, state.width)
