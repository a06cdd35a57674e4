"""Packing a checkpoint: a model's tensors are found in its shards by name, or by what transformers makes of others."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openshelf.errors import Mismatch, UnknownName, WrongVersion
from openshelf.offload.capture.published import Published
from openshelf.offload.weights import format as form
from openshelf.offload.weights.conversion import Converted, Weights, as_model_has, looked_for
from openshelf.offload.weights.pack import dense_strides, folder_or_cache, kept_or_made, ordered
from openshelf.offload.weights.packed import Packed
from openshelf.offload.weights.safetensors import ShardTensor, checkpoint_tensors, from_shard, identity, shard_files
from openshelf.offload.weights.writer import Fill, Source

Form = tuple[str, tuple[int, ...]]  # type and shape
_NAMED = 5  # tensors in a message


def pack_shards(
    source: Path | str,
    order: Sequence[str] = (),
    *,
    tied: Mapping[str, str] | None = None,
    folder: Path | str | None = None,
    published: Published | None = None,
    forms: Mapping[str, Form] | None = None,
) -> Packed:
    """Packs a safetensors checkpoint (a file, an index, or a folder with one), those of `order` first.

    It is streamed: a few chunks are in memory at a time. `tied`: tensors that are other ones, by name. `published`:
    tensors are packed as that model has them. `forms`: types and shapes that tensors must have. The file is kept in
    `folder`, for the next run; it is made anew when a shard has changed. UnknownName, or Mismatch, before anything is
    packed, if one of `order` is not there.
    """
    files, aliases = shard_files(Path(source)), dict(tied or {})
    weights, found = _weights_in(files, source, order, aliases, published), identity(files)
    _need_forms(source, weights, forms or {})
    asked = ["shards", found, list(order), sorted(aliases.items()), _made_of(weights)]
    name = hashlib.sha256(json.dumps([path for path, *_ in found]).encode()).hexdigest()[:24] + ".packed"
    key = hashlib.sha256(json.dumps(asked).encode()).digest()
    return kept_or_made(folder_or_cache(folder), name, key, lambda: _of_shards(weights, order), (WrongVersion,))


def _of_shards(weights: Weights, order: Sequence[str]) -> tuple[list[Source], dict[str, form.PackedTensor]]:
    sources: list[Source] = []
    tensors: dict[str, form.PackedTensor] = {}
    places: dict[ShardTensor | Converted, int] = {}
    for name in ordered(weights, order):
        tensor = weights[name]
        if tensor not in places or not tensor.nbytes:
            places[tensor] = len(sources)
            sources.append(Source(name, tensor.nbytes, _filler(name, tensor)))
        tensors[name] = form.PackedTensor(places[tensor], tensor.dtype, tensor.shape, dense_strides(tensor.shape))
    return sources, tensors


def _weights_in(
    files: list[Path], source: object, wanted: Sequence[str], tied: Mapping[str, str], published: Published | None
) -> Weights:
    """All tensors of the files, as the model has them; UnknownName or Mismatch unless all that are wanted are there.

    `tied`: tensors that are other ones, by name. `source` is how the files are called in messages.
    """
    there = checkpoint_tensors(files)
    found: Weights = {**there}
    failed: dict[str, str] = {}
    if published is not None:
        found, failed = as_model_has(there, published)
    for alias, name in tied.items():
        if name not in found and alias in found:
            found[name] = found[alias]
        elif name not in found and name not in wanted:
            raise UnknownName(f"{alias!r} is said to be tied to {name!r}, which {source} does not have")
    if missing := [name for name in wanted if name not in found]:
        for name in failed.keys() & missing:
            raise Mismatch(f"{source}: {name!r} of the model {failed[name]}. Is it whole, and of this model?")
        raise UnknownName(_lacking(source, wanted, missing, there, published))
    return found | {alias: found[name] for alias, name in tied.items()}


def _need_forms(source: object, weights: Weights, forms: Mapping[str, Form]) -> None:
    found = {name: (weights[name].dtype, weights[name].shape) for name in forms if name in weights}
    if other := [name for name in found if found[name] != forms[name]]:
        (dtype, shape), (planned, wanted) = found[other[0]], forms[other[0]]
        advice = "a quantised checkpoint has to be saved dequantised first" if _is_small(dtype, planned) else (
            "plan a model of the checkpoint's own config and types"
        )  # fmt: skip
        raise Mismatch(
            f"{source} has {other[0]!r} as {dtype} {shape}, the plan was made for {planned} {wanted}, and {len(other)} "
            f"of {len(found)} tensors differ so: {advice}"
        )


def _is_small(dtype: str, planned: str) -> bool:
    """Whether numbers of 8 bits or less are there for larger ones."""
    return "8" in dtype and "8" not in planned


def _filler(name: str, tensor: ShardTensor | Converted) -> Fill:
    return tensor.tensor.filler() if isinstance(tensor, Converted) else from_shard(name, tensor)


def _made_of(weights: Weights) -> list[list[Any]]:
    """For `json`: where in the files each tensor is, or how it is made of such."""
    return [
        [name, one.tensor.part.said() if isinstance(one, Converted) else [one.file.name, one.at]]
        for name, one in sorted(weights.items())
    ]


def _lacking(
    source: object, wanted: Sequence[str], missing: list[str], there: Iterable[str], published: Published | None
) -> str:
    names = list(there)
    asked = [one for one in looked_for(missing[0], published) if one != missing[0]]
    near = difflib.get_close_matches(missing[0], names, n=3) or names[:3]
    return (
        f"{source} is not of the model that was planned: it lacks {len(missing)} of the {len(wanted)} tensors that are "
        f"needed, {_listed(missing)}{f' (looked for {_listed(asked)}, too)' if asked else ''}; it has {len(names)}, "
        f"the nearest to the first are {_listed(near)}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_NAMED])) + (", ..." if names[_NAMED:] else "") or "none"
