"""The Cache that is given to `generate`."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from openshelf._dtypes import element_type, to_torch
from openshelf.adapters.transformers.extra import caches, torch
from openshelf.adapters.transformers.known import known_as
from openshelf.adapters.transformers.layer import PooledLayer
from openshelf.adapters.transformers.layout import check_layout, inner_model
from openshelf.adapters.transformers.prompt import token_rows
from openshelf.adapters.transformers.watch import check_call, check_precision, check_tensor, check_tokens, watch
from openshelf.errors import BadInput, Mismatch, OpenshelfError
from openshelf.kv import Draft, Hit, KVPool, Stored

_RESET = "it was reset"


@dataclass
class _Call:
    """A call of the model that is under way: its tokens, and the layers whose keys and values are still to come."""

    module: Any
    start: int
    shape: tuple[int, int]
    left: set[int]


class PooledCache(caches.Cache):  # type: ignore[misc]  # mypy does not read transformers
    """For one call of a model: `model.generate(**inputs, past_key_values=PooledCache(pool, model, inputs))`.

    `inputs`: the prompt, as generate gets it: what the tokenizer made, or the tokens; several prompts if they have the
    same length. The longest prefix that the pool has is in the cache at once (`hit_tokens`), never the last token: the
    model needs one to go on from. The prompt's full blocks are in the pool when its prefill is done (`stored`), unless
    store=False; `store(output)` adds what was generated. Trouble with the pool stops no generation: it warns.
    The model must be run on these very inputs: hooks on it see every call and refuse others. What is computed outside
    such a call is refused, too. Not thread-safe.
    """

    def __init__(self, pool: KVPool, model: Any, inputs: Any, *, store: bool = True, ttl: float | None = None) -> None:
        if not isinstance(pool, KVPool):
            raise Mismatch(f"a PooledCache needs a KVPool, got {type(pool).__name__}")
        model = inner_model(model)
        check_layout(pool.layout, model.config)
        self._rows = token_rows(inputs, model.config)
        self._model, self._known = model, known_as(model, pool.layout)
        watch(model)
        self._pool, self._ttl = pool, ttl
        self.prompt_tokens = len(self._rows[0])
        self._incomplete = set(range(pool.layout.layers))  # layers that have not seen the whole prompt
        self._drafts: list[Draft] = []
        self._call: _Call | None = None
        self._generated: list[Any] = []
        self._unfit = ""  # why store() must not be used any more
        reach = self._known.reach
        within = reach is None or self.prompt_tokens <= reach
        self._storing = store and within
        self._sound: int | None = None  # tokens before this one are as in every other call; None: all of them
        self.stored: tuple[Stored, ...] = ()
        super().__init__(layers=[PooledLayer() for _ in range(pool.layout.layers)])
        self.hit_tokens = self._read() if within else 0

    def _read(self) -> int:
        """Begins to copy the longest prefix that all prompts have in the pool; its length."""
        layout = self._pool.layout
        hits = [self._pool.match(row[:-1]) for row in self._rows]
        length = min(hit.length for hit in hits)
        if not length:
            return 0
        # A longer hit holds its blocks while they are matched again, so these are there.
        hits = [
            hit if hit.length == length else self._pool.match(row[:length])
            for hit, row in zip(hits, self._rows, strict=True)
        ]
        element = element_type(layout.dtype)
        shape = (len(hits), layout.heads, self.prompt_tokens + 128, layout.head_dim)
        for number, layer in enumerate(self.layers):
            keys, values = (torch.empty(shape, dtype=to_torch(element.code, element.name)) for _ in range(2))
            layer.expect(keys, values, length, [_later(hit, number, keys, values, at) for at, hit in enumerate(hits)])
        return length

    def call_begins(self, module: Any, given: dict[str, Any]) -> None:
        """The model's hook: it is called with this cache. Raises unless it computes what its tokens alone tell."""
        tokens, call = given.get("input_ids"), self._call
        if call is not None:  # a model inside that one: what it is given, the outer one made
            if tokens is not None and tuple(tokens.shape) != call.shape:
                raise BadInput(f"{type(module).__name__} was given other tokens than the model around it")
            return
        if self._unfit == _RESET:
            return
        if tokens is None:
            raise BadInput("a PooledCache knows prompts by their tokens; the model was given none (inputs_embeds?)")
        check_tensor(tokens)
        start, count = self.get_seq_length(), tokens.shape[1]
        if self._incomplete:
            if start + count > self.prompt_tokens:
                raise BadInput(
                    f"this cache was made for a prompt of {self.prompt_tokens} tokens, the model was given "
                    f"{start + count}: it is for the very inputs that it was made with; assisted decoding, which adds "
                    "to them, is not supported"
                )
            check_tokens(tokens, self._rows[:, start : start + count], start)
        if why := self._known.changed(self._model, thoroughly=bool(self._incomplete)):
            raise BadInput(f"the model is not what it was when its layout was made: {why}")
        check_precision(tokens.device, self._pool.layout.dtype)
        check_call(given, start, count)
        if not self._incomplete:
            self._generated.append(tokens)
        if self._sound is None and self._known.reach is not None and start + count > self._known.reach:
            self._sound = start
        self._call = _Call(module, start, tuple(tokens.shape), set(range(len(self.layers))))

    def call_ends(self, module: Any) -> None:
        """The model's hook: what it computed, or failed to, is here."""
        if self._call is not None and self._call.module is module:
            self._call = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # what is stored are numbers, not a program
    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self._unfit != _RESET and not self._expects(key_states, layer_idx):
            self._unfit = self._unfit or "keys and values came outside of a call of the model that it was made with"
        if layer_idx not in self._incomplete:
            keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
            return keys, values
        if self._unfit:
            self._stop_storing()
            raise BadInput(
                f"this PooledCache takes nothing more: {self._unfit}. Call that model itself, uncompiled, or make "
                "a cache without a pool"
            )
        self._check_states(key_states, value_states, layer_idx)
        layer = self.layers[layer_idx]
        copies = key_states.shape[0] // len(self._rows)
        if layer.get_seq_length() and layer.keys.shape[0] != key_states.shape[0]:
            layer.batch_repeat_interleave(copies)  # beams, or several answers to one prompt
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if keys.shape[-2] == self.prompt_tokens:
            self._incomplete.discard(layer_idx)
            if self._storing:
                self._put_layer(layer_idx, keys[::copies], values[::copies])
        return keys, values

    def _expects(self, states: Any, layer: int) -> bool:
        """Whether a call under way was to give these states to a layer; each layer gets them once."""
        call = self._call
        if call is None or layer not in call.left or (states.shape[0], states.shape[-2]) != call.shape:
            return False
        call.left.discard(layer)
        return bool(self.layers[layer].get_seq_length() == call.start)

    def _check_states(self, keys: Any, values: Any, layer: int) -> None:
        layout = self._pool.layout
        for what, states in (("keys", keys), ("values", values)):
            check_tensor(states)
            if (states.shape[1], states.shape[-1]) != (layout.heads, layout.head_dim):
                raise Mismatch(
                    f"the model's {what} in layer {layer} have {states.shape[1]} heads of {states.shape[-1]}, the "
                    f"pool's layout {layout.heads} of {layout.head_dim}: is it another model's? Or make it by hand"
                )
            if str(states.dtype).removeprefix("torch.") != layout.dtype:
                raise Mismatch(
                    f"the model's {what} are of {states.dtype}, the pool's layout of {layout.dtype}: give dtype= to it"
                )

    def _put_layer(self, number: int, keys: Any, values: Any) -> None:
        """A layer of the prompt into the pool; all blocks can be found when the last layer is there."""
        try:
            if not self._drafts:
                self._drafts = [self._pool.draft(row, ttl=self._ttl) for row in self._rows]
            for at, draft in enumerate(self._drafts):
                if draft.stop > draft.start:
                    new = slice(draft.start, draft.stop)
                    pair = keys[at, :, new].detach().cpu(), values[at, :, new].detach().cpu()
                    draft.put_layer(number, pair, start=draft.start)
            if not self._incomplete:
                drafts, self._drafts = self._drafts, []
                self.stored = tuple(draft.publish() for draft in drafts)
        except OpenshelfError as error:
            self._stop_storing()
            warnings.warn(f"the prompt was not stored in {self._pool!r}: {error}", RuntimeWarning, stacklevel=2)

    def _stop_storing(self) -> None:
        self._storing = False
        drafts, self._drafts = self._drafts, []
        for draft in drafts:
            draft.abandon()

    def store(self, output: Any) -> tuple[Stored, ...]:
        """Stores what was generated, too: `output` as generate returned it, prompt included, one row for each prompt.

        The last token of a row has no keys and values yet; it and a block that is not full are left out.
        """
        rows = token_rows(getattr(output, "sequences", output), None)
        if self._unfit:
            raise BadInput(f"what is in the cache cannot be stored: {self._unfit}")
        count = 0 if self._incomplete else self.layers[0].keys.shape[0]
        if len(rows) != count:
            raise BadInput(f"the cache holds {count} sequences, got {len(rows)}")
        known = np.repeat(self._rows, count // len(self._rows), 0)
        known = np.concatenate([known, *(tokens.cpu().numpy() for tokens in self._generated)], 1)
        length = min(known.shape[1], *(layer.get_seq_length() for layer in self.layers))
        if self._sound is not None:
            length = min(length, self._sound)
        width = min(known.shape[1], rows.shape[1])
        if width < self.prompt_tokens or (rows[:, :width] != known[:, :width]).any():
            raise BadInput(
                "the output does not begin with the prompt that this cache was made for and with what followed"
            )
        length = min(length, rows.shape[1])
        pairs = [(layer.keys.detach().cpu(), layer.values.detach().cpu()) for layer in self.layers]
        return tuple(
            self._pool.put(row[:length], [(keys[at], values[at]) for keys, values in pairs], ttl=self._ttl)
            for at, row in enumerate(rows)
        )

    def crop(self, tokens_to_remove: int) -> None:
        self._unfit = "it was cropped"
        super().crop(tokens_to_remove)

    def __deepcopy__(self, memo: dict[int, Any]) -> PooledCache:
        """A cache of its own over the same pool."""
        for layer in self.layers:
            layer.arrive()
        other = object.__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(self.__dict__)
        other.layers = copy.deepcopy(self.layers, memo)
        other._incomplete, other._drafts, other._generated = set(self._incomplete), [], list(self._generated)
        other._call = None
        return other

    def reorder_cache(self, beam_idx: Any) -> None:
        self._unfit = "after a beam search it is not that of the sequences which came out"
        super().reorder_cache(beam_idx)

    def batch_select_indices(self, indices: Any) -> None:
        self._unfit = "sequences were taken out of it or changed places"
        super().batch_select_indices(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._unfit = "its sequences were repeated"
        super().batch_repeat_interleave(repeats)

    def reset(self) -> None:
        """Empties the cache. It may be used for anything then, and stores nothing any more."""
        self._stop_storing()
        self._incomplete.clear()
        self._unfit = _RESET
        super().reset()


def _later(hit: Hit, number: int, keys: Any, values: Any, at: int) -> Future[Any]:
    return hit.read_layer_async(number, (keys[at], values[at]))
