"""A model of transformers that continues a sequence, as something that can be captured at any length.

The cache is the model's own, of whatever class: what is in it is found by looking (`state.py`). To capture a call after
some tokens, a call with these tokens is made first, on tensors without memory, so that numbers and flags in the cache
are what they would be. Then its tensors are replaced by buffers that are inputs of the program.

A cache that grows by `torch.cat` would make a new tensor at every token. Here such a `cat` writes the new tokens behind
the old ones in the buffer instead, which has room for the longest sequence. All else is what the model does with its
own cache: attention sees the same keys, values and masks, head by head in the same layout.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openshelf.errors import BadInput, CaptureFailed, MissingExtra
from openshelf.offload.capture.capture import capture
from openshelf.offload.capture.captured import Captured
from openshelf.offload.capture.tree import Flat, flatten, unflatten
from openshelf.offload.decoder.state import State
from openshelf.offload.program.torch import torch

try:
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput
except ImportError as error:
    raise MissingExtra(
        "decode() runs models of transformers, which is not installed: pip install transformers "
        "(openshelf[transformers])"
    ) from error

CACHES = ("past_key_values", "cache_params", "state")  # how models call what they hand on
SHORT = 2  # tokens after which a cache is looked at first
_FakeTensor: Any = torch._subclasses.FakeTensor


class _Appending(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """While a model runs: what it concatenates to a state that grows goes into the state's buffer.

    `buffers` are those of states that grow, by number, with their axes. `past` tokens are in them. At the beginning of
    a context caches begin with `cat` of nothing and the first tokens: such calls are counted, and `firsts` says which
    of them begins which state. Without buffers they are only noted.
    """

    def __init__(self, buffers: dict[int, tuple[Any, int]], past: int, firsts: dict[int, int]) -> None:
        super().__init__()
        self._buffers, self._past, self._firsts = buffers, past, firsts
        self._numbers = {one.untyped_storage()._cdata: number for number, (one, _) in buffers.items()}
        self.begun: list[Any] = []  # what was made of nothing and the first tokens

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.cat, torch.concat, torch.concatenate):
            return func(*args, **kwargs)
        tensors = args[0] if args else kwargs.get("tensors")
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        if len(tensors) != 2 or "out" in kwargs:
            return func(*args, **kwargs)
        old, new = tensors
        if not self._past and not old.numel():
            number = self._firsts.get(len(self.begun))
            made = func(*args, **kwargs) if number is None else self._appended(number, 0, 0, new)
            self.begun.append(made)
            return made
        number = self._numbers.get(old.untyped_storage()._cdata)
        if number is None or not self._ends(number, old, dim % old.dim()):
            return func(*args, **kwargs)
        return self._appended(number, self._past - old.shape[dim], self._past, new)

    def _ends(self, number: int, old: Any, dim: int) -> bool:
        """Whether it is the last of the tokens that are there, all of them in a window."""
        buffer, axis = self._buffers[number]
        return dim == axis and _same_view(old, _tokens(buffer, axis, self._past - old.shape[dim], self._past))

    def _appended(self, number: int, first: int, past: int, new: Any) -> Any:
        buffer, axis = self._buffers[number]
        end = past + new.shape[axis]
        _tokens(buffer, axis, past, end).copy_(new)
        return _tokens(buffer, axis, first, end)


class GrowingModel:
    """Captures calls of `model` that append tokens to a cache. To `capture` it looks like the model itself.

    `source`: the model is an encoder and a decoder, for sources of so many tokens. The call that begins a context takes
    the source, and appends the token with which every sequence begins.
    """

    def __init__(self, model: Any, batch: int, longest: int, source: int | None = None) -> None:
        self._accepted = _accepted(model, source is not None)
        self.model, self._batch, self._longest, self._source = model, batch, longest, source
        self.shortest = SHORT if source is None else 1  # tokens to which others are appended, by most who call
        self._cache_name = next(name for name in CACHES if name in self._accepted)
        self._past: int | None = None
        self._target = 1  # tokens that a decoder begins with
        self._encoded: tuple[int, ...] = ()  # the shape of what an encoder hands on
        self._forms: dict[int, Flat] = {}  # the cache after so many tokens, taken apart
        self._begun: list[Any] = []
        self.states: tuple[State, ...] = ()
        low = self._form(SHORT)
        begun = {one.untyped_storage()._cdata: number for number, one in enumerate(self._begun)}
        self.states = self._found(low, self._form(longest - 1))
        self._firsts = self._found_firsts(low, begun)

    def captured(self, past: int, tokens: int) -> Captured:
        """The program that appends so many tokens to a cache which holds `past`. Buffers are of `longest` tokens.

        Its inputs are the ids, then a buffer for each state; its output the logits of the last token.
        """
        if past:
            self._form(past)  # before this capture begins
        self._past, self._target = past, 1
        buffers = tuple(map(self._buffer, self.states))
        ids = self._ids(tokens if past else self._source or tokens)
        return capture(self, (ids, *buffers), give_back=False)  # they are written in place

    def __call__(self, ids: Any, *buffers: Any) -> Any:
        past = self._past or 0
        growing = {
            number: (buffer, state.axis)
            for number, (state, buffer) in enumerate(zip(self.states, buffers, strict=bool(buffers)))
            if state.axis is not None
        }
        cache = self._cache_of(past, buffers) if past and buffers else self._empty()
        given = self._inputs(ids, cache, past)
        appending = _Appending(growing, past, self._firsts if buffers else {})
        with appending, _no_look_at_padding():
            result = self.model(**given)
        self._begun = appending.begun
        cache = next((one for name in CACHES if (one := getattr(result, name, None)) is not None), cache)
        if cache is None:
            raise BadInput(f"a {type(self.model).__name__} hands on no cache: there is nothing to go on from")
        tokens = self._target if self._source and not past else ids.shape[1]
        form = self._forms[past + tokens] = flatten(cache)
        if buffers:
            self._put_back(form, buffers, past, tokens)
        return result.logits[:, -1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def _buffer(self, state: State) -> Any:
        """As the model's own lies, or, where it grows, its rows one after the other."""
        if state.grows:
            return torch.empty(state.with_room(self._longest), dtype=state.dtype, device="meta")
        return torch.empty_strided(state.shape, state.strides, dtype=state.dtype, device="meta")

    def _ids(self, tokens: int) -> Any:
        return torch.zeros((self._batch, tokens), dtype=torch.int64)

    def _inputs(self, ids: Any, cache: Any, past: int) -> dict[str, Any]:
        """What `generate` calls the model with: positions, logits of the last token only where the model can."""
        given: dict[str, Any] = {"use_cache": True, "is_first_iteration": not past}
        if cache is not None:
            given[self._cache_name] = cache
        if self._source is not None:
            if past:  # only its shape is looked at
                encoded = BaseModelOutput(last_hidden_state=torch.zeros(self._encoded, dtype=self.model.dtype))
            else:
                encoded = self.model.get_encoder()(input_ids=ids, return_dict=True)
                self._encoded = tuple(encoded.last_hidden_state.shape)
                ids = torch.full((self._batch, self._target), start_of(self.model))
            given["encoder_outputs"] = encoded
        elif "position_ids" in self._accepted:
            given["position_ids"] = torch.arange(past, past + ids.shape[1])[None]
        if "logits_to_keep" in self._accepted:
            given["logits_to_keep"] = 1
        made: dict[str, Any] = self.model.prepare_inputs_for_generation(ids, **given)
        return made | {"return_dict": True}

    def _empty(self) -> Any:
        """The cache that `generate` begins with; None where the model makes its own."""
        supported = getattr(self.model, "_supports_default_dynamic_cache", None)
        if supported is not None and not supported():
            return None
        with torch.utils._python_dispatch._disable_current_modes():  # what it holds from the first is no state
            made = [DynamicCache(config=self.model.config.get_text_config(decoder=True)) for _ in range(2)]
            return made[0] if self._source is None else EncoderDecoderCache(*made)

    def _form(self, tokens: int) -> Flat:
        """The cache after so many tokens, taken apart: its tensors are fakes, those from before any call real."""
        if tokens not in self._forms:
            self._past, self._target = None, tokens
            capture(self, (self._ids(self._source or tokens),), give_back=False)
        return self._forms[tokens]

    def _found(self, low: Flat, high: Flat) -> tuple[State, ...]:
        if low.paths != high.paths:
            raise CaptureFailed(
                f"the cache of a {type(self.model).__name__} has other tensors in it after {SHORT} tokens than after "
                f"{self._longest - 1}"
            )
        found = [
            self._state(name, one, two)
            for name, one, two in zip(low.paths, low.leaves, high.leaves, strict=True)
            if isinstance(one, _FakeTensor)
        ]
        if not found:
            raise BadInput(
                f"a {type(self.model).__name__} puts nothing into the cache that it is given: it keeps what it saw "
                "in itself, where decode() does not look. wrap(model, budget, fallback='modules') runs it"
            )
        return tuple(found)

    def _state(self, name: str, low: Any, high: Any) -> State:
        shape, last = tuple(low.shape), tuple(high.shape)
        differ = [axis for axis in range(low.dim()) if len(shape) != len(last) or shape[axis] != last[axis]]
        if not differ:
            return State(name, shape, low.dtype, strides=tuple(low.stride()))
        axis, tokens = differ[0], self._longest - 1
        if len(differ) > 1 or shape[axis] != SHORT or last[axis] > tokens:
            raise CaptureFailed(
                f"{name[1:]} in the cache of a {type(self.model).__name__} has the shape {shape} after {SHORT} tokens "
                f"and {last} after {tokens}: it neither keeps its shape nor grows by one for each token, and decode() "
                "knows no other way. wrap(model, budget) runs it slowly"
            )
        token = (*shape[:axis], 1, *shape[axis + 1 :])
        return State(name, token, low.dtype, axis, None if last[axis] == tokens else last[axis])

    def _found_firsts(self, low: Flat, begun: dict[int, int]) -> dict[int, int]:
        """Which `cat` of nothing and the first tokens begins which state."""
        numbers = self._numbers()
        return {
            begun[leaf.untyped_storage()._cdata]: numbers[name]
            for name, leaf in zip(low.paths, low.leaves, strict=True)
            if name in numbers and self.states[numbers[name]].grows and leaf.untyped_storage()._cdata in begun
        }

    def _numbers(self) -> dict[str, int]:
        return {state.name: number for number, state in enumerate(self.states)}

    def _cache_of(self, past: int, buffers: tuple[Any, ...]) -> Any:
        """The cache after `past` tokens, its tensors in the buffers."""
        form, numbers = self._forms[past], self._numbers()
        leaves = []
        for name, leaf in zip(form.paths, form.leaves, strict=True):
            if name in numbers:
                state, buffer = self.states[numbers[name]], buffers[numbers[name]]
                first = past - leaf.shape[state.axis] if state.axis is not None else 0
                leaf = buffer if state.axis is None else _tokens(buffer, state.axis, first, past)
            leaves.append(leaf)
        return unflatten(form.tree, leaves)

    def _put_back(self, form: Flat, buffers: tuple[Any, ...], past: int, tokens: int) -> None:
        """Whatever the model has not put into the buffers is copied there."""
        found = {
            name: leaf for name, leaf in zip(form.paths, form.leaves, strict=True) if isinstance(leaf, _FakeTensor)
        }
        if found.keys() != (names := {state.name for state in self.states}):
            raise CaptureFailed(
                f"the cache of a {type(self.model).__name__} has other tensors in it after {past} and {tokens} tokens "
                f"than before: {', '.join(sorted(found.keys() ^ names))}"
            )
        for state, buffer in zip(self.states, buffers, strict=True):
            leaf, end = found[state.name], past + tokens
            if state.axis is None:
                if not _same_view(leaf, buffer):
                    buffer.copy_(leaf)
                continue
            there = _tokens(buffer, state.axis, end - leaf.shape[state.axis], end)
            if _same_view(leaf, there):
                continue
            if past:
                raise CaptureFailed(
                    f"a {type(self.model).__name__} makes {state.name[1:]} in its cache anew at each token, instead "
                    "of adding to it: decode() cannot tell what is new. wrap(model, budget) runs it slowly"
                )
            there.copy_(leaf)


def has_encoder(model: Any) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def without_weights(model: Any) -> Any:
    """A copy to capture, whose parameters take no memory."""
    memo: dict[int, Any] = {
        id(one): torch.nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
        for one in model.parameters()
    }
    return copy.deepcopy(model, memo)


def begins_anew(model: Any) -> int | None:
    """The length at which `generate` computes all of the context again: other rotary frequencies hold from there."""
    config = getattr(model, "config", None)
    anew = getattr(config, "model_type", "") in ("phi3", "phimoe", "phi4_multimodal")
    return getattr(config, "original_max_position_embeddings", None) if anew else None


@contextmanager
def _no_look_at_padding() -> Iterator[None]:
    """While a model is captured: whether its tokens are padded is looked at when they are given, not here."""
    name = "warn_if_padding_and_no_attention_mask"
    looks = getattr(PreTrainedModel, name)
    setattr(PreTrainedModel, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(PreTrainedModel, name, looks)


def forced_token(model: Any, length: int, last: bool) -> int | None:
    """The token that a model's generation config demands behind `length` tokens, or as the last one."""
    for demanded, name in ((last, "forced_eos_token_id"), (length == 1, "forced_bos_token_id")):
        token = getattr(model.generation_config, name, None) if demanded else None
        if token is not None:
            return int(token[0] if isinstance(token, list) else token)
    return None


def start_of(model: Any) -> int:
    """The token with which the sequences of a decoder begin."""
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if isinstance(token := getattr(config, name, None), int):
                return token
    raise BadInput(
        f"a {type(model).__name__} does not say with which token its sequences begin: set "
        "model.generation_config.decoder_start_token_id"
    )


def _accepted(model: Any, with_encoder: bool) -> set[str]:
    """Arguments of a model; BadInput if it is none that can be called here."""
    accepted = set(inspect.signature(model.forward).parameters) if hasattr(model, "forward") else set()
    needed = {"input_ids", "decoder_input_ids"} if with_encoder else {"input_ids"}
    if not needed <= accepted or accepted.isdisjoint(CACHES) or not hasattr(model, "prepare_inputs_for_generation"):
        raise BadInput(
            f"decode() takes a language model of transformers, with {' and '.join(sorted(needed))} and a cache "
            f"(past_key_values); got a {type(model).__name__}"
        )
    return accepted


def _tokens(buffer: Any, axis: int, begin: int, end: int) -> Any:
    return buffer.narrow(axis, begin, end - begin)


def _same_view(one: Any, other: Any) -> bool:
    return (
        one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and (one.shape, one.dtype, one.storage_offset()) == (other.shape, other.dtype, other.storage_offset())
        and one.stride() == other.stride()
    )


def input_names(buffers: int) -> list[str]:
    """How capture names the ids, and the buffers after them."""
    return [f"input[0][{number}]" for number in range(1 + buffers)]
