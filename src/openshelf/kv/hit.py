"""A Hit: the longest prefix of a prompt that a pool has, pinned while it is open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, overload

import numpy as np

from openshelf import _core
from openshelf._dtypes import element_type, to_torch, torch_module
from openshelf._sizes import whole
from openshelf.errors import BadInput, Closed, OutOfRange
from openshelf.kv import buffers
from openshelf.kv.background import later
from openshelf.kv.geometry import Geometry
from openshelf.space import refuse

View = np.ndarray[Any, np.dtype[Any]]


class LayerBlocks(Sequence[View]):
    """One layer of a hit: a view for every block, made when it is asked for. Read-only for numpy."""

    __slots__ = ("_geometry", "_native", "_offset")

    def __init__(self, native: _core.KVHit, geometry: Geometry, offset: int) -> None:
        self._native, self._geometry, self._offset = native, geometry, offset

    def __len__(self) -> int:
        return len(self._native)

    def __reduce__(self) -> Any:
        return refuse("a layer of a Hit", "match the prompt again in the other process, or send a copy: read_layer()")

    @overload
    def __getitem__(self, index: int) -> View: ...

    @overload
    def __getitem__(self, index: slice) -> list[View]: ...

    def __getitem__(self, index: int | slice) -> View | list[View]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        geometry = self._geometry
        view: View = self._native.view(geometry.view_code, geometry.layer_shape, self._at(index), self._offset)
        return view

    def _at(self, index: int) -> int:
        return _block(index, len(self._native))

    def __iter__(self) -> Iterator[View]:
        return (self[at] for at in range(len(self)))

    def torch(self, index: int) -> Any:
        """A block as a tensor. Torch knows no read-only memory: a store would change the block for everybody."""
        element, shape = element_type(self._geometry.layout.dtype), self._geometry.layer_shape
        offset = self._native.offset(self._at(index), self._offset)
        flat = torch_module().frombuffer(
            self._native.writable(),
            dtype=to_torch(element.code, element.name),
            count=math.prod(shape),
            offset=offset,
        )
        return flat.view(shape)


class Hit:
    """What `KVPool.match` found. Until it is released, nobody's eviction takes it; views keep it beyond that.

    `with pool.match(tokens) as hit:` releases it at the end. An empty hit (length 0) is a miss.
    """

    __slots__ = ("_geometry", "_native")

    def __init__(self, native: _core.KVHit, geometry: Geometry) -> None:
        self._native: _core.KVHit | None = native
        self._geometry = geometry

    def __reduce__(self) -> Any:
        return refuse("a Hit", "match the prompt again in the other process: it finds the same blocks")

    @property
    def _pinned(self) -> _core.KVHit:
        if self._native is None:
            raise Closed("this hit was released; match again")
        return self._native

    @property
    def length(self) -> int:
        """Tokens that were found: whole blocks from the start of the prompt."""
        return len(self._pinned) * self._geometry.tokens

    @property
    def blocks(self) -> int:
        return len(self._pinned)

    def block(self, index: int) -> View:
        """All layers of one block, as a read-only view: Layout.shape(block_tokens)."""
        pinned, geometry = self._pinned, self._geometry
        view: View = pinned.view(geometry.view_code, geometry.block_shape, _block(index, len(pinned)), 0)
        return view

    def layer(self, layer: int) -> LayerBlocks:
        """One layer of all blocks: a sequence of read-only views, each Layout.layer_shape(block_tokens)."""
        return LayerBlocks(
            self._pinned, self._geometry, self._geometry.layer_bytes * self._geometry.layout.check_layer(layer)
        )

    def read_layer(self, layer: int, out: Any = None, *, start: int = 0) -> Any:
        """Copies one layer into one array or CPU tensor (or a pair: keys and values), from token `start` on.

        Without `out`, into a fresh ndarray. `out` may have room for more tokens; it may be strided before the tokens.
        """
        layout, layer = self._geometry.layout, self._geometry.layout.check_layer(layer)
        first = self._from(start)
        count = self.blocks - first
        tokens = count * self._geometry.tokens
        if out is None:
            out = np.empty(layout.layer_shape(tokens), layout.view_dtype)
        piece = self._geometry.piece_bytes
        addresses, _ = buffers.layer_pieces(layout, out, tokens, True, f"layer {layer} to read into")
        self._pinned.read(first, count, layer * layout.pieces, piece, addresses, piece, b"")
        return out

    def read_pages(self, layer: int, pages: Any, table: Any, *, axis: int = 0, start: int = 0) -> None:
        """Copies one layer into an engine's paged memory: block i of those from token `start` on into page table[i].

        `pages` is of Layout.layer_shape(block_tokens) with one axis more, number `axis`, that counts the pages.
        """
        geometry, layer = self._geometry, self._geometry.layout.check_layer(layer)
        first = self._from(start)
        what = f"layer {layer} to read into"
        into = buffers.pages_of(geometry.layout, pages, table, axis, geometry.tokens, True, what)
        count = self.blocks - first
        if len(into.table) < count:
            raise BadInput(f"the table names {len(into.table)} pages, {count} blocks are to be read")
        if count:
            piece = geometry.piece_bytes
            at = layer * geometry.layout.pieces
            self._pinned.read(first, count, at, piece, into.addresses, into.step, into.table)

    def read_pages_async(self, layer: int, pages: Any, table: Any, *, axis: int = 0, start: int = 0) -> Future[None]:
        """The same in the background, in turn with read_layer_async."""
        return later("read", self.read_pages, layer, pages, table, axis=axis, start=start)

    def read_layer_async(self, layer: int, out: Any, *, start: int = 0) -> Future[Any]:
        """read_layer in the background, one after another: layers come while those before them are computed."""
        return later("read", self.read_layer, layer, out, start=start)

    def read(self, out: Any = None, *, start: int = 0) -> Any:
        """Copies all layers into one array or CPU tensor, or into a list of one for every layer; as read_layer."""
        layout, first = self._geometry.layout, self._from(start)
        count = self.blocks - first
        tokens = count * self._geometry.tokens
        if out is None:
            out = np.empty(layout.shape(tokens), layout.view_dtype)
        piece = self._geometry.piece_bytes
        addresses, _ = buffers.all_pieces(layout, out, tokens, True)
        self._pinned.read(first, count, 0, piece, addresses, piece, b"")
        return out

    @property
    def table(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The numbers of its blocks in `memory()`, in order: a block table, as paged attention wants it."""
        return np.frombuffer(self._pinned.slots, np.uint32)

    def memory(self, layer: int) -> View:
        """One layer of all the pool's blocks as one read-only strided view; only those in `table` mean anything."""
        buffer = memoryview(self._pinned)
        shape, dtype = self._geometry.layer_shape, self._geometry.layout.view_dtype
        stride = self._pinned.stride
        strides = (stride, *np.empty(shape, dtype).strides)
        offset = self._geometry.layer_bytes * self._geometry.layout.check_layer(layer)
        return np.ndarray((buffer.nbytes // stride, *shape), dtype, buffer, offset, strides)

    def release(self) -> None:
        """Lets go of it; a second call does nothing. Views that are still there keep their blocks."""
        self._native = None

    def __enter__(self) -> Hit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return "Hit(released)" if self._native is None else f"Hit({self.length} tokens)"

    def _from(self, start: int) -> int:
        first = buffers.blocks_in(start, self._geometry.tokens, "start")
        if first > self.blocks:
            raise BadInput(f"start={start} is beyond the hit, which has {self.length} tokens")
        return first


def _block(index: int, blocks: int) -> int:
    index = whole(index, "a block's number")
    at = index + blocks if index < 0 else index
    if not 0 <= at < blocks:
        raise OutOfRange(f"block {index} is out of range for a hit of {blocks} blocks")
    return at
