"""A Draft: blocks that are filled layer by layer while the model computes, and published whole."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from openshelf import _core
from openshelf.errors import BadInput, Closed
from openshelf.kv import buffers
from openshelf.space import refuse

if TYPE_CHECKING:
    from openshelf.kv.pool import KVPool, Stored


class Draft:
    """Room in a pool for the blocks of a prompt that it does not have, between tokens `start` and `stop`.

    `with pool.draft(tokens) as draft:` publishes them at the end if every layer was put, or nothing. `stop` is
    less than the prompt where there was no room. `stored` says afterwards what became of it.
    """

    def __init__(self, native: _core.KVDraft, pool: KVPool) -> None:
        self._native: _core.KVDraft | None = native
        self._pool = pool
        self._layers: set[int] = set()
        self.start = native.next * pool.block_tokens
        self.stop = self.start + native.reserved * pool.block_tokens
        self.stored: Stored | None = None

    def __reduce__(self) -> Any:
        return refuse("a Draft", "fill and publish it in the process that began it")

    def __repr__(self) -> str:
        state = "published or abandoned" if self._native is None else f"tokens {self.start} to {self.stop}"
        return f"Draft({state})"

    def put_layer(self, layer: int, kv: Any, *, start: int = 0) -> None:
        """One layer's keys and values: an array or CPU tensor of Layout.layer_shape, or a pair; of the tokens from
        `start` (at most the draft's) to at least its `stop`. Copied before this returns."""
        native, layer, first = self._before(layer, start)
        layout = self._pool.layout
        if self.stop > self.start:
            piece = self._pool._geometry.piece_bytes
            addresses, kept = buffers.layer_pieces(layout, kv, self.stop - start, False, f"layer {layer}")
            native.write(first, layer * layout.pieces, piece, addresses, piece, b"")
            del kept
        self._layers.add(layer)

    def put_pages(self, layer: int, pages: Any, table: Any, *, axis: int = 0, start: int = 0) -> None:
        """The same from an engine's paged memory: page table[i] is block i of those from token `start` on."""
        native, layer, first = self._before(layer, start)
        layout = self._pool.layout
        from_ = buffers.pages_of(layout, pages, table, axis, self._pool.block_tokens, False, f"layer {layer}")
        count = (self.stop - start) // self._pool.block_tokens
        if len(from_.table) < count:
            raise BadInput(f"the table names {len(from_.table)} pages, {count} blocks are to be put")
        if self.stop > self.start:
            piece = self._pool._geometry.piece_bytes
            native.write(first, layer * layout.pieces, piece, from_.addresses, from_.step, from_.table)
        self._layers.add(layer)

    def _before(self, layer: int, start: int) -> tuple[_core.KVDraft, int, int]:
        if self._native is None:
            raise Closed("this draft was published or abandoned; make another")
        layer = self._pool.layout.check_layer(layer)
        first = buffers.blocks_in(start, self._pool.block_tokens, "start")
        if start > self.start:
            raise BadInput(f"the draft begins with token {self.start}, what is put with {start}: give it from there on")
        return self._native, layer, first

    def publish(self) -> Stored:
        """Makes the blocks findable. BadInput if a layer is missing; then nothing is kept."""
        from openshelf.kv.pool import Stored

        native, self._native = self._native, None
        if native is None:
            raise Closed("this draft was published or abandoned; make another")
        missing = set(range(self._pool.layout.layers)) - self._layers
        if missing and self.stop > self.start:
            native.abandon()
            raise BadInput(f"layers {sorted(missing)} were not put: the draft is abandoned, nothing is published")
        self.stored = Stored(*native.publish())
        return self.stored

    def abandon(self) -> None:
        """Gives the room back; a second call does nothing."""
        native, self._native = self._native, None
        if native is not None:
            native.abandon()

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._native is not None:
            self.publish()
        else:
            self.abandon()
