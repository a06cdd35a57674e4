"""Feeds values to a digest, all of their bytes, so that equal digests mean equal values.

Tensors that are made of others (quantised, sparse, wrapped ones) are taken apart. What cannot be taken apart is
refused: a `repr` is abbreviated, and two models would be one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from openshelf._dtypes import torch_module
from openshelf.errors import BadInput

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def feed(digest: Any, what: str, value: Any) -> None:
    """Adds a value, and what it is called. BadInput, naming it, if its bytes cannot be had."""
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        _feed_tensor(digest, what, value)
    elif isinstance(value, enum.Enum):
        _add(digest, what, type(value), value.name)
    elif type(value) in _PLAIN or isinstance(value, (torch.dtype, torch.device, torch.layout, torch.Size)):
        _add(digest, what, type(value), repr(value))
    elif isinstance(value, Mapping):
        _add(digest, what, dict, len(value))
        for name, part in sorted(value.items(), key=lambda item: repr(item[0])):
            feed(digest, f"{what}[{name!r}]", part)
    elif isinstance(value, list | tuple):
        _add(digest, what, list, len(value))
        for number, part in enumerate(value):
            feed(digest, f"{what}[{number}]", part)
    elif isinstance(value, set | frozenset):
        feed(digest, what, sorted(value, key=repr))
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
        _add(digest, what, np.ndarray, f"{value.dtype.str} {value.shape}")
        digest.update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add(digest, what, type(value), "")
        feed(digest, what, {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif isinstance(value, torch.ScriptObject) and hasattr(value, "__getstate__"):
        feed(digest, what, value.__getstate__())
    else:
        raise _unknown(what, f"is a {type(value).__name__}")


def _add(digest: Any, what: str, kind: type, text: object) -> None:
    for part in (what, f"{kind.__module__}.{kind.__qualname__}", str(text)):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)


def _unknown(what: str, why: str) -> BadInput:
    return BadInput(
        f"{what} {why}, and its bytes cannot be hashed: give name=, a name for the weights which differs where they do"
    )


def _feed_tensor(digest: Any, what: str, tensor: Any) -> None:
    torch = torch_module()
    if tensor.device.type == "meta":
        raise BadInput(f"{what} is not loaded (device 'meta'): give name=, a name for the weights")
    if hasattr(tensor, "__tensor_flatten__"):
        names, more = tensor.__tensor_flatten__()
        _add(digest, what, type(tensor), f"{tensor.dtype} {tuple(tensor.shape)}")
        feed(digest, what, {name: getattr(tensor, name) for name in names})
        feed(digest, f"{what} (around its tensors)", more)
        return
    kind = type(tensor)
    if kind in (torch.nn.Parameter, torch.nn.Buffer):
        kind = torch.Tensor
    elif kind is not torch.Tensor:  # it may keep more than its bytes
        beside = {name: part for name, part in vars(tensor).items() if not name.startswith("_")}
        feed(digest, f"{what} (beside its bytes)", beside)
        tensor = tensor.detach().as_subclass(torch.Tensor)
    tensor = tensor.detach()
    _add(digest, what, kind, f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}")
    if tensor.is_quantized:
        _feed_quantized(digest, what, tensor)
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        feed(digest, what, [tensor.indices(), tensor.values()])
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        feed(digest, what, [tensor.crow_indices(), tensor.col_indices(), tensor.values()])
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        feed(digest, what, [tensor.ccol_indices(), tensor.row_indices(), tensor.values()])
    else:
        digest.update(_bytes_of(what, tensor))


def _feed_quantized(digest: Any, what: str, tensor: Any) -> None:
    torch = torch_module()
    scheme = tensor.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scales = [tensor.q_scale(), tensor.q_zero_point()]
    else:
        scales = [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), tensor.q_per_channel_axis()]
    feed(digest, what, [str(scheme), tensor.int_repr(), *scales])


def _bytes_of(what: str, tensor: Any) -> Any:
    torch = torch_module()
    try:
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return memoryview(flat.view(torch.uint8).numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise _unknown(what, f"is a tensor of {tensor.dtype} ({error})") from None
