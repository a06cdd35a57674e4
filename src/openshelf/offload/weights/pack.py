"""Packing: a model's weights into one file in the order of their use, from memory here, and by `shards.py` from files.

What shares memory is stored once. A packed file of the same source is used again: its key is made of the shards' paths,
sizes and times, or, of weights in memory, of the bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import _core
from openshelf._files import alone
from openshelf.errors import Corrupt, Mismatch, UnknownName, WrongVersion
from openshelf.offload.cache import cache_folder, private_folder
from openshelf.offload.weights import format as form
from openshelf.offload.weights.packed import Packed, is_packed
from openshelf.offload.weights.writer import Fill, Source, write_packed


def pack_state(
    state: Mapping[str, Any],
    order: Sequence[str] = (),
    *,
    folder: Path | str | None = None,
    name: str | None = None,
) -> Packed:
    """Packs tensors of this process (CPU tensors of torch, or ndarrays), those of `order` first.

    Without a `name` the file has none, and goes with the process. With one, the file of that name in `folder` is used
    as it is if it holds these bytes in this order, and else made anew, also in the place of one that was cut or
    altered. Tensors that share a storage still do.
    """
    roots: dict[int, int] = {}
    sources: list[Source] = []
    tensors: dict[str, form.PackedTensor] = {}
    digest = hashlib.sha256(b"state")
    for each in ordered(state, order):
        address, nbytes, offset, tensor = _memory_of(each, state[each])
        if (known := roots.get(address) if nbytes else None) is None:
            known = len(sources)
            roots[address] = known
            sources.append(Source(each, nbytes, _from_memory(address, state[each])))
            if name is not None:
                digest.update(_core.check_padded(address, nbytes).to_bytes(8, "little"))
        tensors[each] = form.PackedTensor(known, *tensor, offset)
    digest.update(repr([(source.name, source.nbytes) for source in sources] + list(tensors.items())).encode())
    return kept_or_made(
        folder_or_cache(folder), name, digest.digest(), lambda: (sources, tensors), (WrongVersion, Corrupt)
    )


def pack_sources(
    sources: list[Source], tensors: dict[str, form.PackedTensor], *, folder: Path | str, name: str
) -> Packed:
    """Packs storages that are read as they are written, one after the other, in the place of a file of that name."""
    return kept_or_made(Path(folder), name, os.urandom(32), lambda: (sources, tensors), (WrongVersion, Corrupt))


def kept_or_made(
    folder: Path,
    name: str | None,
    key: bytes,
    content: Callable[[], tuple[list[Source], dict[str, form.PackedTensor]]],
    replaced: tuple[type[Exception], ...],
) -> Packed:
    """A packed file that cannot be opened for a reason in `replaced` is made anew; files of others are left alone."""
    if name is None:
        return write_packed(folder, None, *content(), key)
    with alone(private_folder(folder)):
        generation = 0
        if (folder / name).exists():
            try:
                there = Packed.open(folder / name)
            except replaced:
                if not is_packed(folder / name):
                    raise
            else:
                if there.key == key:
                    return there
                generation = there.generation
        return write_packed(folder, name, *content(), key, generation + 1)


def folder_or_cache(folder: Path | str | None) -> Path:
    return cache_folder() if folder is None else Path(folder)


def ordered(known: Mapping[str, Any], order: Sequence[str]) -> list[str]:
    if unknown := [name for name in order if name not in known]:
        raise UnknownName(f"there are no weights {', '.join(map(repr, unknown[:5]))} to be packed")
    return list(dict.fromkeys([*order, *known]))


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for at in range(len(shape) - 2, -1, -1):
        strides[at] = strides[at + 1] * max(1, shape[at + 1])
    return tuple(strides)


def _memory_of(name: str, value: Any) -> tuple[int, int, int, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Address and size of its storage, the offset of the tensor there, and what the tensor is."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise Mismatch(f"the array {name!r} is not contiguous; pack np.ascontiguousarray of it")
        shape = tuple(value.shape)
        return value.ctypes.data, value.nbytes, 0, (value.dtype.name, shape, dense_strides(shape))
    if value.device.type != "cpu":
        raise Mismatch(
            f"the weight {name!r} is on {value.device}; pack weights that are on the CPU, or the checkpoint's shards"
        )
    storage = value.untyped_storage()
    offset = value.storage_offset() * value.element_size()
    kind = str(value.dtype).removeprefix("torch.")
    return storage.data_ptr(), storage.nbytes(), offset, (kind, tuple(value.shape), tuple(value.stride()))


def _from_memory(address: int, keep: Any) -> Fill:
    def fill(view: memoryview, at: int) -> None:
        _ = keep  # so that its memory is there
        source = (ctypes.c_char * len(view)).from_address(address + at)
        view[:] = memoryview(source).cast("B")

    return fill
