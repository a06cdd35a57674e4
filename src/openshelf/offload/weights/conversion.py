"""A checkpoint's tensors as the model has them: renamed, and fused or split, by transformers' own rules.

The rules are called as transformers calls them when it loads a model, with Lazy tensors: nothing is read here.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from openshelf.offload.capture.published import Published
from openshelf.offload.program.torch import torch
from openshelf.offload.weights.lazy import Last, Lazy, stored
from openshelf.offload.weights.safetensors import ShardTensor, from_shard


@dataclasses.dataclass(frozen=True, eq=False)
class Converted:
    """A tensor of the model that is made of others."""

    tensor: Lazy

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def nbytes(self) -> int:
        return int(self.tensor.numel() * self.tensor.dtype.itemsize)


Weights = dict[str, ShardTensor | Converted]


def as_model_has(there: Mapping[str, ShardTensor], published: Published) -> tuple[Weights, dict[str, str]]:
    """By the model's names; and why those cannot be made that cannot. What the model has no place for is left out."""
    loading: Any = importlib.import_module("transformers.core_model_loading")
    transforms = copy.deepcopy(published.transforms)  # they note what they have seen
    renamings = [one for one in transforms if isinstance(one, loading.WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, loading.WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    prefix, wanted = published.base_model_prefix, published.tensors
    found: Weights = {}
    failed: dict[str, str] = {}
    collected: dict[str, tuple[Any, list[str]]] = {}
    last = Last()
    for name in sorted(there, key=loading.dot_natural_key):
        renamed, pattern = loading.rename_source_key(name, renamings, converters, prefix, wanted)
        if renamed not in wanted and name in wanted:
            renamed, pattern = loading.rename_source_key(name, [], [], prefix, wanted)
        if renamed in wanted and pattern is None:
            found[renamed] = there[name]
        elif renamed in wanted:
            if renamed not in collected:
                collected[renamed] = (copy.deepcopy(by_pattern[pattern]), [])
            converter, sources = collected[renamed]
            converter.add_tensor(renamed, name, pattern, _lazy(name, there[name], last))
            sources.append(name)
    for first, (converter, sources) in collected.items():
        try:
            made = converter.convert(first, model=published, config=published.config)
        except Exception as error:  # whatever the rules of transformers raise
            failed[first] = _why(sources, f"{type(error).__name__}: {error}")
            continue
        for name, result in made.items():
            tensor = result[0] if isinstance(result, list) else result
            if name in wanted and tensor.shape != wanted[name].shape:
                failed[name] = _why(sources, f"they make {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}")
            elif name in wanted:
                found[name] = Converted(tensor)
    return found, failed


def _why(sources: list[str], reason: str) -> str:
    named = ", ".join(map(repr, sources[:4])) + (", ..." if sources[4:] else "")
    return f"cannot be made of the {len(sources)} tensors that are there for it ({named}): {reason}"


def looked_for(name: str, published: Published | None) -> list[str]:
    """How a checkpoint may have what the model calls `name`: `*` is a number, such as that of an expert."""
    if published is None:
        return [name]
    loading: Any = importlib.import_module("transformers.core_model_loading")
    transforms = [one for one in published.transforms if not isinstance(one, loading.PrefixChange)]
    back = [one.reverse_transform() for one in reversed(transforms)]
    found = [name]
    for one in back:
        if isinstance(one, loading.WeightConverter):
            renamed, pattern = one.rename_source_key(name)
            if pattern is not None:
                found += [renamed.replace(one.target_patterns[0], other) for other in one.target_patterns]
    renamings = [one for one in back if isinstance(one, loading.WeightRenaming)]
    return list(dict.fromkeys([name, *(loading.apply_renamings(one, renamings) for one in found[1:] or found)]))


def _lazy(name: str, tensor: ShardTensor, last: Last) -> Lazy:
    fill = from_shard(name, tensor)

    def read(at: int, count: int) -> Any:
        room = torch.empty(count, dtype=torch.uint8)
        fill(memoryview(room.numpy()), at)
        return room

    return stored(name, tensor.dtype, tensor.shape, read, last)
