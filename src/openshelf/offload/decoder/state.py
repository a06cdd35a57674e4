"""What a model's cache is made of: tensors that grow by one for each token, and tensors that keep their shape.

Keys and values of attention grow. A sliding window grows too, but only its last tokens are looked at again, so only
these are kept. States of convolutions and recurrences keep their shape, and are written anew by each token. Keys and
values of an encoder's output keep their shape, and are written once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from openshelf._core import SECTOR


class State(NamedTuple):
    """One tensor of a cache, by its `name` there. `shape` is its own, or of one token if it grows along `axis`.

    `window`: so many of the last tokens are looked at again; None: all of them. `strides` are of one that keeps its
    shape.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    axis: int | None = None
    window: int | None = None
    strides: tuple[int, ...] = ()

    @property
    def grows(self) -> bool:
        return self.axis is not None

    @property
    def rows(self) -> int:
        """What lies before the axis: each row has its tokens one after the other."""
        return math.prod(self.shape[: self.axis]) if self.grows else 1

    @property
    def width(self) -> int:
        """Elements of one token in one row."""
        return math.prod(self.shape) // self.rows

    @property
    def token_bytes(self) -> int:
        """Of one token in one row; of all of it if it does not grow."""
        return int(self.width * self.dtype.itemsize)

    @property
    def sector_tokens(self) -> int:
        """Tokens of a row that fill whole sectors."""
        return math.lcm(SECTOR, self.token_bytes) // self.token_bytes

    def with_room(self, tokens: int) -> tuple[int, ...]:
        """The shape of a buffer for so many tokens."""
        if self.axis is None:
            return self.shape
        return (*self.shape[: self.axis], tokens, *self.shape[self.axis + 1 :])

    def down(self, tokens: int) -> int:
        """Those of so many tokens that fill whole sectors."""
        return tokens // self.sector_tokens * self.sector_tokens

    def up(self, tokens: int) -> int:
        return -(-tokens // self.sector_tokens) * self.sector_tokens

    def first(self, past: int) -> int:
        """The first of `past` tokens that is needed to go on, at a sector."""
        return 0 if self.window is None else self.down(max(0, past - self.window))

    def held(self, room: int, tokens: int) -> int:
        """Tokens that a row must have room for, to append `tokens` to contexts of up to `room` in all."""
        if self.window is None:
            return self.up(room)
        return min(self.up(room), self.up(self.window + self.sector_tokens + tokens))


def grain(states: tuple[State, ...]) -> int:
    """Tokens of which a row's length is a multiple: these are whole sectors in every buffer."""
    return math.lcm(*(state.sector_tokens for state in states if state.grows))
