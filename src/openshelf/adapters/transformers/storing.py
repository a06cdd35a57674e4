"""Puts prompts into a pool while they are computed: each layer when it has them whole, all to be found at the end."""

from __future__ import annotations

from typing import Any

from openshelf.adapters.transformers.extra import torch
from openshelf.adapters.transformers.kept import Kept, LayerParts, pack
from openshelf.adapters.transformers.prompt import Prompt
from openshelf.adapters.transformers.states import names_of, to_bytes
from openshelf.kv import Draft, KVPool, Stored


class PromptDraft:
    """The drafts of all prompts of a cache."""

    def __init__(self, pool: KVPool, kept: Kept, prompt: Prompt, ttl: float | None) -> None:
        self._pool, self._kept, self._prompt, self._ttl = pool, kept, prompt, ttl
        self._drafts: list[Draft | None] = []
        for row in range(len(prompt.rows)):
            self._drafts.append(pool.draft(prompt.tokens(row), ttl=ttl))

    def put_layer(self, number: int, layer: Any, copies: int) -> None:
        """What layer `number` of those that keep something has of the prompts; each of them is there `copies` times."""
        for row, draft in enumerate(self._drafts):
            if draft is None or draft.stop == draft.start:
                continue
            pad = int(self._prompt.pads[row])
            if (kv := _of_layer(self._kept, number, layer, row * copies, draft.start + pad, draft.stop + pad)) is None:
                draft.abandon()  # blocks before the window were evicted since, and are not here
                self._drafts[row] = None
            else:
                draft.put_layer(number, kv, start=draft.start)

    def put_nothing(self) -> None:
        """Blocks of a model that keeps nothing of single tokens: they say that the prompt was there."""
        width = self._pool.layout.head_dim
        for draft in self._drafts:
            if draft is not None:
                draft.put_layer(
                    0, torch.zeros((draft.stop - draft.start, width), dtype=_dtype(self._pool)), start=draft.start
                )

    def publish(self, states: dict[int, list[Any]]) -> tuple[Stored, ...]:
        """All of it can be found from now on; `states` by the tokens before them, of every prompt once."""
        drafts, self._drafts = self._drafts, []
        stored = []
        for row, draft in enumerate(drafts):
            tokens = self._prompt.tokens(row)
            blocks = len(tokens) // self._pool.block_tokens
            stored.append(Stored(blocks, 0, 0, blocks) if draft is None else draft.publish())
            _put_states(self._pool, tokens, stored[-1], states, row, self._ttl)
        return tuple(stored)

    def abandon(self) -> None:
        drafts, self._drafts = self._drafts, []
        for draft in drafts:
            if draft is not None:
                draft.abandon()


def _put_states(
    pool: KVPool, tokens: Any, stored: Stored, states: dict[int, list[Any]], row: int, ttl: float | None
) -> None:
    """States of a prompt, where the blocks before them are in the pool."""
    there = (stored.present + stored.stored) * pool.block_tokens
    names = names_of(tokens[:there], pool.block_tokens) if states else []
    for length, tensors in states.items():
        if length <= there:
            pool.put(names[length // pool.block_tokens - 1], to_bytes(tensors, row), ttl=ttl)


def _of_layer(kept: Kept, number: int, layer: Any, row: int, start: int, stop: int) -> Any:
    """Columns of a row of a layer, as the pool's layout has them; None if they are not there any more."""
    parts: LayerParts = kept.layers[number]
    columns = slice(start - layer.base, stop - layer.base)
    if columns.start < 0:
        return None
    if kept.is_uniform:
        return tuple(getattr(layer, part.name)[row, :, columns].detach().cpu() for part in parts.parts)
    width = max(each.width for each in kept.layers)
    return pack(layer, parts.parts, row, columns, width)


def _dtype(pool: KVPool) -> Any:
    return getattr(torch, pool.layout.dtype)
