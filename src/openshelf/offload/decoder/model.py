"""A model of transformers that continues a sequence, as something that can be captured at any length.

The cache that it is given grows in place: new keys and values are written behind the old ones in buffers that have room
for the longest sequence, where transformers' own makes new tensors at every token. All else is what the model does with
its own cache: attention sees the same keys, values and masks, head by head in the same layout.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from openshelf.errors import BadInput, CaptureFailed, MissingExtra
from openshelf.offload.capture.capture import capture
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.torch import torch

try:
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as error:
    raise MissingExtra(
        "decode() runs models of transformers, which is not installed: pip install 'openshelf[transformers]'"
    ) from error


class Shape(NamedTuple):
    """Of a layer's keys, or values, for one token."""

    batch: int
    heads: int
    width: int
    dtype: Any

    @property
    def token_bytes(self) -> int:
        """Of one token in one head: what lies in a row."""
        return int(self.width * self.dtype.itemsize)

    @property
    def rows(self) -> int:
        return self.batch * self.heads


class _Seen(DynamicLayer):  # type: ignore[misc]  # transformers is not typed here
    """A layer that only looks at what it is given."""

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.shapes = tuple(Shape(one.shape[0], one.shape[1], one.shape[3], one.dtype) for one in (keys, values))
        return keys, values


class _InPlace(DynamicLayer):  # type: ignore[misc]
    """Keys and values in buffers, `past` tokens of them."""

    def __init__(self, buffers: tuple[Any, ...], past: int) -> None:
        super().__init__()
        self._buffers, self._length = buffers, past
        keys = buffers[0]
        self.is_initialized, self.dtype, self.device = True, keys.dtype, keys.device

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        begin, end = self._length, self._length + keys.shape[-2]
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, begin:end].copy_(new)
        self._length = end
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._length


class GrowingModel:
    """Captures calls of `model` that append tokens to a cache. To `capture` it looks like the model itself."""

    def __init__(self, model: Any, batch: int, longest: int) -> None:
        accepted = inspect.signature(model.forward).parameters if hasattr(model, "forward") else {}
        if not {"input_ids", "past_key_values"} <= accepted.keys():
            raise BadInput(
                f"decode() takes a causal language model of transformers, with input_ids and past_key_values; got a "
                f"{type(model).__name__}"
            )
        self._model, self._batch, self._longest = model, batch, longest
        # As `generate` does: logits of the last token only, where the model can.
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._layers: list[Any] = []
        self._past = -1
        capture(self, (torch.zeros((batch, 2), dtype=torch.int64),))
        self.shapes = tuple(shape for layer in self._layers for shape in getattr(layer, "shapes", ()))
        if not self.shapes or len(self.shapes) != 2 * len(self._layers):
            raise BadInput(f"a {type(model).__name__} puts nothing into some layers of the cache that it is given")

    def captured(self, past: int, tokens: int) -> Captured:
        """The program that appends so many tokens to a cache which holds `past`. Buffers are of `longest` tokens.

        Its inputs are the ids, then keys and values of each layer; its output the logits of the last token.
        """
        self._past = past
        ids = torch.zeros((self._batch, tokens), dtype=torch.int64)
        buffers = tuple(
            torch.empty((one.batch, one.heads, self._longest, one.width), dtype=one.dtype, device="meta")
            for one in self.shapes
        )
        found = capture(self, (ids, *buffers), give_back=False)  # they are written in place
        if {one.name for one in found.program.storages if one.kind == "input"} < set(input_names(len(buffers))):
            raise CaptureFailed("the model does not use all of its inputs and its cache")
        return found

    def __call__(self, ids: Any, *buffers: Any) -> Any:
        if buffers:
            layers = [_InPlace(buffers[at : at + 2], self._past) for at in range(0, len(buffers), 2)]
            cache = Cache(layers=layers)
        else:
            cache = Cache(layer_class_to_replicate=_Seen)
        result = self._model(input_ids=ids, past_key_values=cache, use_cache=True, **self._keep)
        self._layers = cache.layers
        return result.logits[:, -1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def input_names(buffers: int) -> list[str]:
    """How capture names the ids, and the buffers after them."""
    return [f"input[0][{number}]" for number in range(1 + buffers)]
