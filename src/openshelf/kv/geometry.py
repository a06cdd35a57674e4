"""A layout's numbers for one block size, computed once: a view of a block takes a microsecond, its shape another."""

from __future__ import annotations

from openshelf.kv.layout import Layout


class Geometry:
    """Shapes and sizes of blocks of so many tokens."""

    __slots__ = (
        "block_bytes",
        "block_shape",
        "layer_bytes",
        "layer_shape",
        "layout",
        "piece_bytes",
        "tokens",
        "view_code",
    )

    def __init__(self, layout: Layout, tokens: int) -> None:
        self.layout, self.tokens = layout, tokens
        self.block_shape, self.layer_shape = layout.shape(tokens), layout.layer_shape(tokens)
        self.block_bytes = layout.block_bytes(tokens)
        self.layer_bytes = self.block_bytes // layout.layers
        self.piece_bytes = self.layer_bytes // layout.pieces
        self.view_code = layout.view_code
