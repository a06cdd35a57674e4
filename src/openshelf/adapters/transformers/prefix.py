"""Reads the longest prefix that a pool has of some prompts into the layers of a cache, in the background.

The sequences of a cache go on from one column. Behind padding a prompt begins later, so its prefix may end inside a
block there; of a layer with a window only its last blocks are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from openshelf._dtypes import element_type, to_torch
from openshelf.adapters.transformers.extra import torch
from openshelf.adapters.transformers.kept import Kept, LayerParts, unpack
from openshelf.adapters.transformers.prompt import Prompt
from openshelf.adapters.transformers.states import find_states, load_states
from openshelf.kv import Hit, KVPool


class Prefix(NamedTuple):
    """`length`: columns that are in the cache. `found`: those that the pool has, up to which no states were saved."""

    length: int
    found: int


def read_prefix(pool: KVPool, kept: Kept, prompt: Prompt, cache: Any, least: int) -> Prefix:
    """Never the last token of a prompt: the model needs one to go on from. With states, at least so many or none."""
    prompts = [prompt.tokens(row) for row in range(len(prompt.rows))]
    hits = [pool.match(tokens[:-1]) for tokens in prompts]
    if not any(hit.length for hit in hits):
        return Prefix(0, 0)
    found = length = min(int(pad) + hit.length for pad, hit in zip(prompt.pads, hits, strict=True))
    if kept.states:
        length, states = find_states(pool, kept, prompts, found, least)
        if length:
            load_states(cache, kept.states, states)
    if length:
        # A longer hit holds its blocks while they are matched again, so these are there.
        block = pool.block_tokens
        needed = [max(0, -(-(length - int(pad)) // block) * block) for pad in prompt.pads]
        hits = [
            hit if hit.length == need else pool.match(tokens[:need])
            for hit, tokens, need in zip(hits, prompts, needed, strict=True)
        ]
        for number, parts in enumerate(kept.layers):
            _read_layer(pool, kept, prompt, hits, length, number, parts, cache.layers[parts.number])
    return Prefix(length, found)


def _read_layer(
    pool: KVPool, kept: Kept, prompt: Prompt, hits: list[Hit], length: int, number: int, parts: LayerParts, layer: Any
) -> None:
    block, pads = pool.block_tokens, [int(pad) for pad in prompt.pads]
    oldest = 0 if parts.window is None else max(0, length - parts.window + 1)  # of the columns that are needed
    starts = [max(0, (oldest - pad) // block * block) for pad in pads]
    begins = [start + pad for start, pad in zip(starts, pads, strict=True)]
    base = min(oldest, *begins)
    element = element_type(pool.layout.dtype)
    dtype = to_torch(element.code, element.name)
    room = max(prompt.length + 128, *(hit.length + pad for hit, pad in zip(hits, pads, strict=True))) - base
    rooms = {part.name: part.room(len(hits), room, dtype, "cpu") for part in parts.parts}
    coming = []
    for row, (hit, start, begin) in enumerate(zip(hits, starts, begins, strict=True)):
        for part in parts.parts:  # padding, which is masked: anything but a NaN
            rooms[part.name][row].narrow(part.axis - 1, 0, min(begin, length) - base).zero_()
        if hit.length > start:
            coming.append(_later(kept, hit, number, parts, rooms, row, start, begin - base))
    layer.expect(rooms, base, length, coming)


def _later(
    kept: Kept, hit: Hit, number: int, parts: LayerParts, rooms: dict[str, Any], row: int, start: int, at: int
) -> Callable[[], Any]:
    """Begins to read a layer of one prompt from token `start` on into its row of the rooms; what to call to wait."""
    if kept.is_uniform:
        pair = tuple(rooms[part.name][row][:, at:] for part in parts.parts)
        return hit.read_layer_async(number, pair, start=start).result
    width = max(layer.width for layer in kept.layers)
    packed = torch.empty((hit.length - start, width), dtype=rooms["keys"].dtype)
    under_way = hit.read_layer_async(number, packed, start=start)

    def arrive() -> None:
        under_way.result()
        unpack(packed, parts.parts, rooms, row, at)

    return arrive
