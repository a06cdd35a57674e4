"""A small transformer in numpy, with random weights: it computes what real ones do, keys and values of every token."""

from __future__ import annotations

from typing import Any

import numpy as np

LAYERS, HEADS, HEAD_DIM, VOCABULARY = 6, 8, 32, 1024
_HIDDEN = HEADS * HEAD_DIM

Floats = np.ndarray[Any, np.dtype[np.float32]]


class Model:
    """The same weights in every process."""

    def __init__(self) -> None:
        chance = np.random.default_rng(7)

        def weights(*shape: int) -> Floats:
            return chance.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))

        self._embedding = weights(VOCABULARY, _HIDDEN)
        self._layers = [
            (weights(_HIDDEN, 3 * _HIDDEN), weights(_HIDDEN, _HIDDEN), weights(_HIDDEN, 4 * _HIDDEN),
             weights(4 * _HIDDEN, _HIDDEN)) for _ in range(LAYERS)
        ]  # fmt: skip

    def run(self, tokens: Any, past: list[Any]) -> tuple[Floats, list[Floats]]:
        """What follows the last token, and keys and values of these tokens, which follow those of `past`."""
        state, fresh = self._embedding[tokens] * np.float32(8), []
        for (mix, out, up, down), before in zip(self._layers, past, strict=True):
            query, key, value = np.moveaxis((_normed(state) @ mix).reshape(len(tokens), 3, HEADS, HEAD_DIM), 1, 0)
            fresh.append(np.stack([key, value]))
            keys, values = np.concatenate([before, fresh[-1]], 1)
            state = state + _attend(query, keys, values).reshape(len(tokens), _HIDDEN) @ out
            state = state + np.maximum(_normed(state) @ up, 0) @ down
        return _normed(state)[-1] @ self._embedding.T, fresh


def _normed(state: Floats) -> Floats:
    normed: Floats = state / np.sqrt((state * state).mean(1, keepdims=True) + np.float32(1e-5))
    return normed


def _attend(query: Floats, keys: Floats, values: Floats) -> Floats:
    count, length = len(query), len(keys)
    later = np.arange(length)[None, :] > np.arange(length - count, length)[:, None]
    heads = []
    for head in range(HEADS):
        scores = query[:, head] @ keys[:, head].T / np.float32(np.sqrt(HEAD_DIM))
        scores[later] = -np.inf
        scores = np.exp(scores - scores.max(1, keepdims=True))
        heads.append(scores / scores.sum(1, keepdims=True) @ values[:, head])
    return np.stack(heads, 1)
