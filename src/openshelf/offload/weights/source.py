"""Where weights come from: a model in memory, a checkpoint, or what a run has saved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openshelf._files import given_path
from openshelf.errors import BadInput, Mismatch
from openshelf.offload.capture.captured import Captured, Modules, modules_of, trained_of
from openshelf.offload.program.call import View
from openshelf.offload.program.torch import torch
from openshelf.offload.weights.checkpoint import STEP, WEIGHT
from openshelf.offload.weights.pack import pack_state
from openshelf.offload.weights.packed import Packed, is_packed
from openshelf.offload.weights.safetensors import checkpoint_tensors, shard_files
from openshelf.offload.weights.shards import pack_shards


def packed_from(captured: Captured, source: Any, folder: Path | str | None) -> Packed:
    """The weights of a program: `source` is the model, or the path of a checkpoint or of a packed file."""
    if isinstance(source, torch.nn.Module):
        state = state_of(source)
        _need_same_modules(captured.modules, modules_of(source))
        if captured.trained is not None and (other := captured.trained ^ trained_of(source)):
            raise Mismatch(
                f"requires_grad of {', '.join(sorted(other)[:5])} is not what it was when the plan was made: make a "
                "new plan"
            )
        _need_same_model(captured, state)
        if captured.updates is not None:
            captured.updates.need_same()
        return packed_state(captured, state, folder)
    if not isinstance(source, str | os.PathLike):
        raise BadInput(f"weights come from the model or the path of a checkpoint, got {type(source).__name__}")
    path = given_path(source, "a checkpoint")
    if path.is_file() and is_packed(path):
        return _checked(captured, Packed.open(path))
    order: list[str] = []
    tied: dict[str, str] = {}
    for storage in captured.program.storages:
        names = captured.names.get(storage.index, ())
        if names and storage.index not in captured.values:
            order.append(names[0])
            tied |= dict.fromkeys(names[1:], names[0])
    views = {name: captured.views[name] for name in order}
    forms = {name: (str(view.dtype).removeprefix("torch."), tuple(view.shape)) for name, view in views.items()}
    packed = pack_shards(path, order, tied=tied, folder=folder, published=captured.published, forms=forms)
    return _checked(captured, packed)


def need_weights(model: Any, source: Any = None) -> None:
    """BadInput, before anything is planned, if there are no weights: in the model, or at the path `source`.

    What is at the path is not compared with the model yet.
    """
    if isinstance(source, str | os.PathLike):
        path = given_path(source, "a checkpoint")
        if not (path.is_file() and is_packed(path)):
            checkpoint_tensors(shard_files(path))
        return
    if source is not None or not hasattr(model, "named_parameters"):  # others say what is wrong with it
        return
    if empty := [name for name, one in model.named_parameters() if one.is_meta]:
        raise BadInput(
            f"the model has no weights: {empty[0]!r} and {len(empty) - 1} others are on the meta device. Load it with "
            "its weights, or give a checkpoint's path: decode(weights=), buckets(weights=), or plan() and its load()"
        )


def state_of(model: Any) -> dict[str, Any]:
    """All parameters and buffers by all their names, those that are not saved included."""
    found = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in found.items()}


def packed_state(
    captured: Captured, state: Mapping[str, Any], folder: Path | str | None, *, whole: bool = False
) -> Packed:
    """The weights of a model in memory, packed in the order of their use, in a file without a name.

    `whole`: those that the program does not use, too, after the others.
    """
    order, tensors = [], {}
    for storage in captured.program.storages:
        names = captured.names.get(storage.index, ())
        if not names or storage.index in captured.values:
            continue
        tensor = state.get(names[0])
        if tensor is None:
            raise BadInput(f"the plan was made for a model with {names[0]!r}, this one has none: make a new plan")
        if tensor.is_meta:
            raise BadInput(f"{names[0]!r} is on the meta device: give load() the checkpoint's path instead")
        order.append(names[0])
        tensors[names[0]] = tensor
    if whole:
        computed = {name for index in captured.values for name in captured.names.get(index, ())}
        tensors |= {name: one for name, one in state.items() if not one.is_meta and name not in computed}
    return pack_state(tensors, order, folder=folder)


def _need_same_modules(planned: Modules, found: Modules) -> None:
    for path in planned | found:
        name = f"the module {path!r}" if path else "the model"
        if path not in found or path not in planned:
            change = f"{name} {'is no longer there' if path in planned else 'was not there'}"
        elif planned[path] == found[path]:
            continue
        else:
            (kind, trained, tensors), (kind_now, trains, tensors_now) = planned[path], found[path]
            if trained != trains:
                change = f"{name} {'trained' if trained else 'did not train'} (model.training)"
            elif kind != kind_now:
                change = f"{name} was a {kind}, and is a {kind_now}"
            else:
                change = f"{name} had the tensors {', '.join(tensors)}, and has {', '.join(tensors_now)}"
        raise Mismatch(f"when the plan was made {change}: make a new plan")


def _need_same_model(captured: Captured, state: dict[str, Any]) -> None:
    """Mismatch unless the model's tensors lie as those that were planned, and what the plan holds is the same."""
    for index, names in captured.names.items():
        there = {name: state[name] for name in names if name in state}
        for name, tensor in there.items():
            _need_same(
                name, captured.views[name], str(tensor.dtype), tensor.shape, tensor.stride(), tensor.storage_offset()
            )
        if len({one.untyped_storage().data_ptr() for one in there.values()}) > 1:
            raise Mismatch(
                f"{' and '.join(there)} were one tensor when the plan was made, and are not: make a new plan"
            )
        if index in captured.values and names[0] in there:
            planned, tensor = captured.values[index], there[names[0]]
            if not tensor.is_meta and not torch.equal(planned, tensor):
                raise Mismatch(f"the buffer {names[0]!r} has changed since the plan was made: make a new plan")


def _checked(captured: Captured, packed: Packed) -> Packed:
    """Mismatch unless tensors of the file are of the types and shapes that were planned."""
    prefix = WEIGHT if STEP in packed.tensors else ""
    for index, (name, *_) in captured.names.items():
        one = packed.tensors.get(prefix + name)
        if one is not None and index not in captured.values:
            offset = one.offset // captured.views[name].dtype.itemsize
            _need_same(name, captured.views[name], "torch." + one.dtype, one.shape, one.stride, offset)
    return packed


def _need_same(name: str, view: View, dtype: str, shape: Any, strides: Any, offset: int) -> None:
    def lies(strides: Any) -> list[int]:
        return [stride for length, stride in zip(view.shape, strides, strict=True) if length != 1]

    planned, found = (str(view.dtype), tuple(view.shape)), (dtype, tuple(shape))
    if planned != found:
        raise Mismatch(
            f"{name!r} is {found[0]} {found[1]}, the plan was made for {planned[0]} {planned[1]}: the model has "
            "changed since, make a new plan"
        )
    if (lies(view.strides), view.offset) != (lies(strides), offset):
        raise Mismatch(
            f"{name!r} has strides {tuple(strides)} from {offset}, the plan was made for {view.strides} from "
            f"{view.offset}: the model has changed since, make a new plan"
        )
