"""The Cache that is given to `generate`."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np

from openshelf._sizes import flag
from openshelf.adapters.transformers.extra import caches, torch
from openshelf.adapters.transformers.known import known_as
from openshelf.adapters.transformers.layer import layers_for
from openshelf.adapters.transformers.layout import check_config, check_layout, inner_model
from openshelf.adapters.transformers.prefix import Prefix, read_prefix
from openshelf.adapters.transformers.prompt import Prompt, prompt_of, token_rows
from openshelf.adapters.transformers.states import save_states
from openshelf.adapters.transformers.storing import PromptDraft
from openshelf.adapters.transformers.watch import (
    check_call,
    check_positions,
    check_precision,
    check_tensor,
    check_tokens,
    watch,
)
from openshelf.errors import BadInput, Closed, Mismatch, OpenshelfError
from openshelf.kv import KVPool, Stored

_RESET = "it was reset"
_STEPS = 2  # blocks that are worth computing token by token, where a model cannot go on otherwise
_gone: WeakSet[KVPool] = WeakSet()  # pools that are no more: said once


@dataclass
class _Call:
    """A call of the model that is under way: its tokens, and the layers whose keys and values are still to come."""

    module: Any
    start: int
    shape: tuple[int, int]
    left: set[int] = field(default_factory=set)

    @property
    def stop(self) -> int:
        return self.start + self.shape[1]


class PooledCache(caches.Cache):  # type: ignore[misc]  # mypy does not read transformers
    """For one call of a model: `model.generate(**inputs, past_key_values=PooledCache(pool, model, inputs))`.

    `inputs`: the prompt, as generate gets it: what the tokenizer made, or the tokens; several prompts, shorter ones
    padded on their left. The longest prefix that the pool has is in the cache at once (`hit_tokens`, padding included),
    never the last token: the model needs one to go on from. The prompt's full blocks are in the pool when its prefill
    is done (`stored`), unless store=False; `store(output)` adds what was generated. Trouble with the pool stops no
    generation: it warns. The model must be run on these very inputs: hooks on it see every call and refuse others. What
    is computed outside such a call is refused, too. Not thread-safe.
    """

    is_compileable = False

    def __init__(self, pool: KVPool, model: Any, inputs: Any, *, store: bool = True, ttl: float | None = None) -> None:
        if not isinstance(pool, KVPool):
            raise Mismatch(f"a PooledCache needs a KVPool, got {type(pool).__name__}")
        model = inner_model(model)
        check_config(model.config)
        self._prompt = prompt_of(inputs, model.config)
        self._model, self._known = model, known_as(model, pool.layout)
        self._kept = self._known.kept
        check_layout(pool.layout, model.config, self._kept)
        if self._prompt.is_padded and not self._kept.states:
            self._known.check_padding(model)
        watch(model)
        self._pool, self._ttl = pool, ttl
        self.prompt_tokens = self._prompt.length
        self._numbers = {parts.number: parts for parts in self._kept.layers}
        self._incomplete = set(self._numbers)  # layers that have not seen the whole prompt
        self._prefilling = True
        self._draft: PromptDraft | None = None
        self._call: _Call | None = None
        self._sequences = 0
        self._generated: list[Any] = []
        self._unfit = ""  # why store() must not be used any more
        reach = self._known.reach
        within = reach is None or self.prompt_tokens <= reach
        within = within and not (
            self._kept.states and self._prompt.is_padded
        )  # states end where blocks do, in all rows
        self._storing = flag(store, "store") and within
        self._sound: int | None = None  # tokens before this one are as in every other call; None: all of them
        self.stored: tuple[Stored, ...] = ()
        super().__init__(layers=layers_for(model.config))
        prefix = self._read() if within else Prefix(0, 0)
        self.hit_tokens = self._seen = prefix.length
        self._states: dict[int, list[Any]] = {}  # that were saved, by the tokens before them
        self._save_at = {(self.prompt_tokens - 1) // pool.block_tokens * pool.block_tokens}
        if not self._known.one_by_one:
            self._save_at.add(prefix.found)  # another prompt began with it, so a third may

    def _read(self) -> Prefix:
        """Begins to copy the longest prefix that all prompts have in the pool. A pool that is gone has none."""
        if self._pool in _gone:
            self._storing = False
            return Prefix(0, 0)
        try:
            least = self.prompt_tokens - _STEPS * self._pool.block_tokens if self._known.one_by_one else 0
            return read_prefix(self._pool, self._kept, self._prompt, self, least)
        except Closed as error:
            self._storing = False
            _gone.add(self._pool)
            warnings.warn(f"nothing is shared any more: {error}", RuntimeWarning, stacklevel=3)
            return Prefix(0, 0)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if not self._kept.layers:
            return self._seen
        return int(super().get_seq_length(layer_idx))

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
        if self._prefilling:
            if start + count > self.prompt_tokens:
                raise BadInput(
                    f"this cache was made for a prompt of {self.prompt_tokens} tokens, the model was given "
                    f"{start + count}: it is for the very inputs that it was made with; assisted decoding, which adds "
                    "to them, is not supported"
                )
            check_tokens(tokens, self._prompt.rows[:, start : start + count], start)
        if why := self._known.changed(self._model, thoroughly=self._prefilling):
            raise BadInput(f"the model is not what it was when its layout was made: {why}")
        check_precision(tokens.device, self._pool.layout.dtype)
        pads = self._prompt.repeated(tokens.shape[0]).pads
        check_call(module, given, start, count, pads)
        padded = self._prompt.is_padded and not self._kept.states  # with states nothing is shared behind padding
        check_positions(module, given, padded, self._known.needs_positions)
        if self._known.one_by_one and start and count > 1:
            raise BadInput(
                f"{self._model.config.model_type} forgets its state in a call of several tokens: after the first call, "
                f"give it one token at a time, not {count}"
            )
        if not self._prefilling:
            self._generated.append(tokens)
        if self._sound is None and self._known.reach is not None and start + count > self._known.reach:
            self._sound = start
        self._repeat(tokens.shape[0])
        self._call = _Call(module, start, tuple(tokens.shape), set(self._numbers))

    def _repeat(self, sequences: int) -> None:
        """What came from the pool, for beams or several answers to one prompt."""
        times = sequences // len(self._prompt.rows)
        if times > 1 and self._prefilling and self.get_seq_length() == self.hit_tokens > 0:
            for number in {*self._numbers, *(state.layer for state in self._kept.states)}:
                self.layers[number].batch_repeat_interleave(times)

    def call_ends(self, module: Any, done: bool) -> None:
        """The model's hook: what it computed, or failed to, is here."""
        call = self._call
        if call is None or call.module is not module:
            return
        self._call = None
        if not done:
            self._unfit = self._unfit or "a call of the model failed"
            self._stop_storing()
            return
        self._seen, self._sequences = call.stop, call.shape[0]
        copies = call.shape[0] // len(self._prompt.rows)
        if self._kept.states and call.stop % self._pool.block_tokens == 0:
            self._save_states(call, copies)
        if self._prefilling and call.stop == self.prompt_tokens:
            self._prefilling = False
            if self._storing:
                self._finish(copies)
            self._states = {}  # from now on of all sequences, not of all prompts

    def _save_states(self, call: _Call, copies: int) -> None:
        """At the end of a block: of a prompt, where it was decided; of what is generated, the last one, for store()."""
        if self._prefilling and not (self._storing and call.stop in self._save_at):
            return
        tensors = save_states(self, self._kept.states)
        for state, tensor in zip(self._kept.states, tensors, strict=True):
            if (tensor.dtype, tuple(tensor.shape[1:])) != (state.dtype, state.shape):  # under autocast, say
                return
        if self._prefilling:
            self._states[call.stop] = [tensor[::copies] for tensor in tensors]
        else:
            self._states = {call.stop: tensors}

    def tokens_given_twice(self, given: dict[str, Any]) -> int:
        """How many tokens of a call are here already: generate leaves them out, but not of models without attention."""
        if "cache_params" not in given or not self.hit_tokens or not self._may_split(given):
            return 0
        again = self._seen == self.hit_tokens and given["input_ids"].shape[1] == self.prompt_tokens
        return self.hit_tokens if again else 0

    def tokens_to_begin_with(self, given: dict[str, Any]) -> int:
        """How many tokens of a call are to be computed first, for states to be saved behind them; 0: all at once."""
        if not self._may_split(given):
            return 0
        start, count = self.get_seq_length(), given["input_ids"].shape[1]
        if self._known.one_by_one and start:
            return 1 if count > 1 else 0
        inside = [at - start for at in self._save_at if self._storing and start < at < start + count]
        return min(inside, default=0)

    def _may_split(self, given: dict[str, Any]) -> bool:
        """Only where nobody sees it: generate asks for the logits of the last token alone."""
        seen = [name for name in ("labels", "output_hidden_states", "output_attentions") if given.get(name)]
        return bool(
            self._kept.states
            and self._prefilling
            and self._call is None
            and not self._unfit
            and not seen
            and given.get("logits_to_keep") == 1
            and given.get("input_ids") is not None
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # what is stored are numbers, not a program
    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self._unfit != _RESET and not self._expects(key_states, layer_idx):
            self._unfit = self._unfit or "keys and values came outside of a call of the model that it was made with"
        if layer_idx not in self._incomplete:
            keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
            return keys, values
        self._check_fit()
        self._check_states(key_states, value_states, layer_idx)
        layer = self.layers[layer_idx]
        copies = key_states.shape[0] // len(self._prompt.rows)
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer.get_seq_length() == self.prompt_tokens:
            self._incomplete.discard(layer_idx)
            if self._storing and self._numbers[layer_idx].is_pair:
                self._put_layer(layer_idx, copies)
        return keys, values

    def _check_fit(self) -> None:
        if self._unfit:
            self._stop_storing()
            raise BadInput(
                f"this PooledCache takes nothing more: {self._unfit}. Call that model itself, uncompiled, or make "
                "a cache without a pool"
            )

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        self._check_in_call()
        return super().get_conv_state(layer_idx, state_idx)

    def update_conv_state(self, conv_states: Any, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        self._check_in_call()
        return super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        self._check_in_call()
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_recurrent_state(self, recurrent_states: Any, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Any:
        self._check_in_call()
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)

    def _check_in_call(self) -> None:
        """States are read and written by calls of the model only."""
        if self._call is None and self._unfit != _RESET:
            self._unfit = self._unfit or "states were asked for outside of a call of the model that it was made with"
        if self._prefilling:
            self._check_fit()

    def _expects(self, states: Any, layer: int) -> bool:
        """Whether a call under way was to give these states to a layer; each layer gets them once."""
        call = self._call
        if call is None or layer not in call.left or (states.shape[0], states.shape[-2]) != call.shape:
            return False
        call.left.discard(layer)
        return bool(self.layers[layer].get_seq_length() == call.start)

    def _check_states(self, keys: Any, values: Any, layer: int) -> None:
        for part, states in zip(self._numbers[layer].parts, (keys, values), strict=False):
            check_tensor(states)
            heads, width = part.shape
            if (states.shape[1], states.shape[-1]) != (heads, width):
                raise Mismatch(
                    f"the model's {part.name} in layer {layer} have {states.shape[1]} heads of {states.shape[-1]}, "
                    f"when it was tried they had {heads} of {width}: make layout_of(model) and the pool anew"
                )
            if str(states.dtype).removeprefix("torch.") != self._pool.layout.dtype:
                raise Mismatch(
                    f"the model's {part.name} are of {states.dtype}, the pool's layout of {self._pool.layout.dtype}: "
                    "give dtype= to it"
                )

    def _put_layer(self, number: int, copies: int) -> None:
        """A layer of the prompt into the pool; all blocks can be found when the call has ended."""
        try:
            if self._draft is None:
                self._draft = PromptDraft(self._pool, self._kept, self._prompt, self._ttl)
            at = self._kept.layers.index(self._numbers[number])
            self._draft.put_layer(at, self.layers[number], copies)
        except OpenshelfError as error:
            self._give_up(error)

    def _finish(self, copies: int) -> None:
        """The prompt is computed: what is not in its draft yet, and states."""
        for number, parts in self._numbers.items():
            if self._storing and not parts.is_pair:
                self._put_layer(number, copies)
        try:
            if self._storing and not self._kept.layers:
                self._draft = PromptDraft(self._pool, self._kept, self._prompt, self._ttl)
                self._draft.put_nothing()
            draft, self._draft = self._draft, None
            if draft is not None:
                self.stored = draft.publish(self._states)
        except OpenshelfError as error:
            self._give_up(error)

    def _give_up(self, error: OpenshelfError) -> None:
        self._stop_storing()
        if isinstance(error, Closed):
            if self._pool in _gone:
                return
            _gone.add(self._pool)
        warnings.warn(f"the prompt was not stored in {self._pool!r}: {error}", RuntimeWarning, stacklevel=3)

    def _stop_storing(self) -> None:
        self._storing = False
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.abandon()

    def store(self, output: Any) -> tuple[Stored, ...]:
        """Stores what was generated, too: `output` as generate returned it, prompt included, one row for each prompt.

        The last token of a row has no keys and values yet; it and a block that is not full are left out. Of a pool that
        is gone, nothing is stored, and nothing is returned.
        """
        rows = token_rows(getattr(output, "sequences", output))
        if self._unfit:
            raise BadInput(f"what is in the cache cannot be stored: {self._unfit}")
        count = 0 if self._prefilling else self._sequences
        if len(rows) != count:
            raise BadInput(f"the cache holds {count} sequences, got {len(rows)}")
        prompt = self._prompt.repeated(count)
        known = np.concatenate([prompt.rows, *(tokens.cpu().numpy() for tokens in self._generated)], 1)
        length = min(known.shape[1], self.get_seq_length())
        if self._sound is not None:
            length = min(length, self._sound)
        width = min(known.shape[1], rows.shape[1])
        if width < self.prompt_tokens or (rows[:, :width] != known[:, :width]).any():
            raise BadInput(
                "the output does not begin with the prompt that this cache was made for and with what followed"
            )
        if self._pool in _gone or (self._kept.states and prompt.is_padded):
            return ()
        length = min(length, rows.shape[1])
        draft = PromptDraft(self._pool, self._kept, Prompt(rows[:, :length], prompt.pads), self._ttl)
        for number, parts in enumerate(self._kept.layers):
            draft.put_layer(number, self.layers[parts.number], 1)
        if not self._kept.layers:
            draft.put_nothing()
        return draft.publish({at: states for at, states in self._states.items() if at <= length})

    def crop(self, tokens_to_remove: int) -> None:
        self._unfit = "it was cropped"
        super().crop(tokens_to_remove)

    def __deepcopy__(self, memo: dict[int, Any]) -> PooledCache:
        """A cache of its own over the same pool."""
        for parts in self._kept.layers:
            self.layers[parts.number].arrive()
        other = object.__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(self.__dict__)
        other.layers = copy.deepcopy(self.layers, memo)
        other._incomplete, other._draft, other._generated = set(self._incomplete), None, list(self._generated)
        other._states, other._call = dict(self._states), None
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
        self._prefilling, self._seen = False, 0
        self._unfit = _RESET
        super().reset()
