"""States of a cache, as values of a pool.

A recurrence has one state for all tokens so far, so a prefix can only be gone on from where one was saved. It is a
plain value of the pool, named by all tokens before it, and saved at the end of a block.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from openshelf.adapters.transformers.extra import torch
from openshelf.adapters.transformers.kept import Kept, State
from openshelf.kv import KVPool

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def save_states(cache: Any, states: tuple[State, ...]) -> list[Any]:
    """Copies of all states as they are now, every sequence of them."""
    return [getattr(cache.layers[state.layer], state.name)[state.place].detach().clone() for state in states]


def load_states(cache: Any, states: tuple[State, ...], tensors: list[Any]) -> None:
    """Goes on from such copies, which become the cache's own."""
    for state, tensor in zip(states, tensors, strict=True):
        layer = cache.layers[state.layer]
        getattr(layer, state.name)[state.place] = tensor
        getattr(layer, f"is_{state.name}_initialized")[state.place] = True
        layer.has_previous_state[state.place] = state.seen
        if state.name == "conv_states":
            layer.conv_kernel_size[state.place] = tensor.shape[-1]
            if layer.device is None:
                layer.dtype, layer.device = tensor.dtype, tensor.device


def to_bytes(tensors: list[Any], row: int) -> Bytes:
    """One sequence's states, one behind the other."""
    parts = [tensor[row].cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
    return np.concatenate(parts)


def from_bytes(rows: list[Bytes], states: tuple[State, ...]) -> list[Any]:
    """The reverse, of all sequences."""
    tensors, at = [], 0
    for state in states:
        parts = np.stack([row[at : at + state.nbytes] for row in rows])
        tensors.append(torch.from_numpy(parts).view(state.dtype).reshape(len(rows), *state.shape))
        at += state.nbytes
    return tensors


def names_of(tokens: Any, block: int) -> list[bytes]:
    """The names of the states after each whole block of a prompt."""
    digest, names = hashlib.sha256(b"OSFHFS1\0"), []
    for end in range(block, len(tokens) + 1, block):
        digest.update(np.ascontiguousarray(tokens[end - block : end], "<i8").tobytes())
        names.append(digest.copy().digest())
    return names


def find_states(pool: KVPool, kept: Kept, prompts: list[Any], length: int, least: int) -> tuple[int, list[Any]]:
    """The longest prefix, of `least` to `length` tokens, whose states the pool has for all prompts; and the states."""
    block = pool.block_tokens
    names = [names_of(tokens[:length], block) for tokens in prompts]
    while length and length >= least:
        if (skipped := pool.first_of(reversed(names[0][: length // block]))) is None:
            break
        if (length := length - skipped * block) < least:
            break
        rows = [np.empty(kept.state_bytes, np.uint8) for _ in prompts]
        got = (pool.get_into(of[length // block - 1], row) for of, row in zip(names, rows, strict=True))
        if all(size == kept.state_bytes for size in got):
            return length, from_bytes(rows, kept.states)
        length -= block
    return 0, []
