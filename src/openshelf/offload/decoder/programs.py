"""The programs of a model that generates: to begin a context, to append a piece of a prompt, to append a token.

One set of them serves all lengths of a context. If the model has an encoder, a set is for one length of the source.
"""

from __future__ import annotations

from typing import Any

from openshelf.offload.decoder.model import GrowingModel
from openshelf.offload.decoder.plan import Growth, Growths
from openshelf.offload.decoder.state import grain

SMALLEST = 256  # tokens of the smallest bucket
NEXT, FIRST, MORE = "next", "first", "more"  # a token; the beginning of a prompt; another piece of it


class Programs:
    """For contexts of up to `longest` tokens, prompts in pieces of `chunk`; or for `source` tokens of a source.

    `time_limit`: seconds to measure operators.
    """

    def __init__(
        self, model: Any, batch: int, longest: int, chunk: int, time_limit: float, source: int | None = None
    ) -> None:
        growing = self.growing = GrowingModel(model, batch, longest, source)
        self.states, self.source, self.longest = growing.states, source, longest
        self._grain = grain(growing.states)
        each = time_limit / 3
        first = Growths(growing, chunk if source is None else 1, each, fresh=True)
        self.kinds = {FIRST: first, NEXT: Growths(growing, longest, each)}
        if source is None and chunk < longest:
            self.kinds[MORE] = Growths(growing, longest, each, tokens=chunk)

    @property
    def all(self) -> list[Growth]:
        return [one for several in self.kinds.values() for one in several.all]

    @property
    def outside(self) -> int:
        return max(growth.timed.outside for growth in self.all)

    @property
    def least(self) -> int:
        """Bytes of the smallest arena for which there are plans."""
        return max(growth.least(self.room(growth.most())) for growth in self.all)

    @property
    def enough(self) -> int:
        """Bytes of an arena that cannot be used better if it is larger."""
        return max(growth.enough(self.room(growth.most())) for growth in self.all)

    def room(self, tokens: int) -> int:
        """The tokens that the bucket of a context has room for."""
        room = self.up(SMALLEST)
        while room < tokens:
            room *= 2
        return min(room, self.up(self.longest))

    def up(self, tokens: int) -> int:
        return -(-tokens // self._grain) * self._grain
