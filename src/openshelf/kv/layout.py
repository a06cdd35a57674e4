"""What a block of KV cache looks like: layers, heads and elements, their type and order, and the model they are of.

A Layout is a value. Two pools with different ones never find each other's blocks: it is part of every key. It knows
nothing of devices or engines; adapters translate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from openshelf._dtypes import element_type, to_numpy
from openshelf._sizes import whole
from openshelf.errors import BadInput, Mismatch, OutOfRange

_AXES = "kthd"
_BITS = {1: "uint8", 2: "uint16"}  # how numpy sees the bits of types that only torch has


@dataclass(frozen=True)
class Layout:
    """The shape of KV cache blocks, and whose they are.

    `model`: names the weights, revision included; it must differ wherever the cache would. `heads`: KV heads that this
    rank holds. `order`: the axes of one layer, first to last: k (keys, then values), t (tokens), h (heads), d (a head's
    elements). `latent`: multi-head latent attention, one row a token and layer instead of keys and values. `rank` of
    `ranks`: tensor-parallel parts. `adapter`: LoRA or the like, by any name that identifies it.
    """

    model: str
    layers: int
    heads: int
    head_dim: int
    dtype: str = "bfloat16"
    order: str = _AXES
    latent: bool = False
    rank: int = 0
    ranks: int = 1
    adapter: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise BadInput(f"a Layout needs model=, a name for the weights and their revision, got {self.model!r}")
        for name in ("layers", "heads", "head_dim", "ranks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
                raise BadInput(f"a Layout's {name} is a whole number from 1 on, got {value!r}")
        if not isinstance(self.rank, int) or not 0 <= self.rank < self.ranks:
            raise BadInput(f"rank is from 0 to {self.ranks - 1} for {self.ranks} ranks, got {self.rank!r}")
        if not isinstance(self.order, str) or sorted(self.order) != sorted(_AXES):
            raise BadInput(f"order names the axes k, t, h and d once each, as in 'kthd' or 'khtd'; got {self.order!r}")
        element = element_type(self.dtype)
        if not element.code:
            raise Mismatch(f"a Layout's dtype is one of the plain number types, got {self.dtype!r}")
        object.__setattr__(self, "dtype", element.name)

    @classmethod
    def from_config(cls, config: Any, **given: Any) -> Layout:
        """From a transformers configuration (or a dict of it), or from vLLM's model_config.hf_config.

        What is `given` wins: dtype=, order=, model=, rank=, ranks=, adapter=. Heads are divided by `ranks`.
        """
        config = getattr(config, "get_text_config", lambda: config)()
        read = config.get if isinstance(config, dict) else lambda name, other=None: getattr(config, name, other)
        heads = _first(read, "num_attention_heads", "n_head", "num_heads")
        layers = _first(read, "num_hidden_layers", "n_layer", "num_layers")
        rank_dim = _optional(read, "kv_lora_rank")
        found: dict[str, Any] = {"layers": layers}
        if rank_dim:
            found |= {"heads": 1, "head_dim": rank_dim + (_optional(read, "qk_rope_head_dim") or 0), "latent": True}
        else:
            ranks = _from_one(given.get("ranks", 1), "ranks")
            shared = _optional(read, "num_key_value_heads") or heads
            if shared % ranks and ranks % shared:
                raise BadInput(f"{shared} KV heads cannot be divided among {ranks} ranks")
            width = _optional(read, "head_dim") or _first(read, "hidden_size", "n_embd") // heads
            found |= {"heads": max(1, shared // ranks), "head_dim": width}
        named = read("_name_or_path") or ""
        revision = read("_commit_hash")
        found["model"] = f"{named}@{revision}" if named and revision else named
        dtypes = [given.get("dtype"), read("dtype"), read("torch_dtype")]
        if dtype := [str(one).removeprefix("torch.") for one in dtypes if one is not None]:
            found["dtype"] = dtype[0]
        found |= given
        if isinstance(found["model"], str) and not found["model"]:
            raise BadInput("the configuration does not name its model; give model=, a name for the weights")
        return cls(**found)

    @classmethod
    def raw(cls, block_bytes: int, model: str = "bytes") -> Layout:
        """Blocks of plain bytes: for `put(key, bytes)`, or for caches that are no tensors of these axes."""
        return cls(model=model, layers=1, heads=1, head_dim=block_bytes, dtype="uint8", latent=True)

    @cached_property
    def itemsize(self) -> int:
        return element_type(self.dtype).itemsize

    @cached_property
    def view_dtype(self) -> np.dtype[Any]:
        """What numpy views show: the type itself, or for those that only torch has, their bits."""
        element = element_type(self.dtype)
        if element.torch_only:
            return np.dtype(_BITS[element.itemsize])
        return to_numpy(element.code, element.descr)

    @cached_property
    def _known(self) -> set[Any]:
        return set()  # dtypes, of numpy or torch, that were found to be this one: their names take long to make

    @cached_property
    def view_code(self) -> int:
        return element_type(self.view_dtype).code

    def layer_shape(self, tokens: int) -> tuple[int, ...]:
        """The shape of one layer of so many tokens."""
        if type(tokens) is not int:
            tokens = whole(tokens, "a number of tokens")
        if self.latent:
            return (tokens, self.heads * self.head_dim)
        sizes = {"k": 2, "t": tokens, "h": self.heads, "d": self.head_dim}
        return tuple(sizes[axis] for axis in self.order)

    def shape(self, tokens: int) -> tuple[int, ...]:
        """The shape of all layers of so many tokens."""
        return (self.layers, *self.layer_shape(tokens))

    @cached_property
    def token_axis(self) -> int:
        """Where the tokens are in a layer's shape."""
        return 0 if self.latent else self.order.index("t")

    @cached_property
    def pieces(self) -> int:
        """How many parts of a layer are contiguous over the tokens: the product of the axes before them."""
        return math.prod(self.layer_shape(1)[: self.token_axis])

    def block_bytes(self, tokens: int) -> int:
        return math.prod(self.shape(tokens)) * self.itemsize

    def check_layer(self, layer: int) -> int:
        """The layer's number, counted from the last if it is negative, as rows and blocks are."""
        number = layer if type(layer) is int else whole(layer, "a layer's number")
        at = number + self.layers if number < 0 else number
        if not 0 <= at < self.layers:
            raise OutOfRange(f"layer {layer!r} is out of range for a layout of {self.layers} layers")
        return at

    def check_array(self, array: Any, shape: tuple[int, ...], what: str) -> None:
        """Raises Mismatch if an array or tensor is not of this type and shape."""
        dtype = getattr(array, "dtype", None)
        if dtype is not self.view_dtype and dtype not in self._known:
            came = type(array).__name__ if dtype is None else str(dtype).removeprefix("torch.")
            if came not in (self.dtype, self.view_dtype.name):
                raise Mismatch(
                    f"{what} is of {came}, the pool's layout of {self.dtype}; convert it, or use another layout"
                )
            self._known.add(dtype)
        if tuple(array.shape) != shape:
            raise Mismatch(
                f"{what} has the shape {tuple(array.shape)}, expected {shape} (order {self.order!r}, "
                f"{self.layers} layers, {self.heads} heads of {self.head_dim}); see Layout.shape()"
            )


def _from_one(value: Any, what: str) -> int:
    number = whole(value, what)
    if number < 1:
        raise BadInput(f"{what} is a whole number from 1 on, got {value!r}")
    return number


def _optional(read: Any, name: str) -> int | None:
    """None too where a configuration has 0 for what it lacks."""
    value = read(name)
    return None if value is None else whole(value, name) or None


def _first(read: Any, *names: str) -> int:
    for name in names:
        if (value := read(name)) is not None:
            return _from_one(value, name)
    raise BadInput(f"the configuration has none of {', '.join(names)}; make the Layout by hand")
