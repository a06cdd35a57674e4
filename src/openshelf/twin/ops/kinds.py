"""The kinds of operators: which columns a shape has, what work it is, and which shapes are near each other.

Near is measured in a few coordinates, mostly logarithms, where times of real kernels are smooth. Decoding, for one,
reads the keys of `batch * kv_heads` sequences whatever the two factors are, but kernels differ where there is one head
of keys, and where each head has its own. `scales` says how far two shapes may be apart, in each coordinate, before
they say nothing about each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import UnknownName
from openshelf.fabric import nearest

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

HEAD_DIM = 128  # of the attention rows
MLA_RANK, MLA_ROPE, MLA_HEAD = 512, 64, 192
BYTES = {
    "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "nvfp4": 0.5625,
    "w4a16_mxfp4": 0.53125,
}  # fmt: skip
"""Bytes of a weight, with its scales."""
MATHS = {"fp8_block": "fp8", "w4a16_mxfp4": "bfloat16", "float16": "bfloat16"}
"""Dtypes whose products are computed at the rate of another."""


@dataclass(frozen=True)
class Kind:
    """One kind of operator. `sizes` are numbers and `words` names; together they are the shape."""

    name: str
    sizes: tuple[str, ...]
    words: tuple[str, ...]
    left_out: tuple[str, ...]
    """The columns that make a shape which benchmarks leave out as a whole."""
    scales: tuple[float, ...]
    neighbours: int
    work: Callable[[Columns, Mapping[str, str]], tuple[Floats, Floats]]
    """Floating-point operations, and bytes that cross the accelerator's memory."""
    coordinates: Callable[[Columns], Floats]


def _logs(*columns: Floats) -> Floats:
    return np.stack(columns, axis=1)


def _gemm_work(size: Columns, word: Mapping[str, str]) -> tuple[Floats, Floats]:
    m, n, k = size["m"], size["n"], size["k"]
    wide = _bytes(word["dtype"])
    return 2 * m * n * k, wide * (m * k + n * k) + 2 * m * n


def _gemm_near(size: Columns) -> Floats:
    return _logs(np.log(size["n"]), np.log(size["k"]), np.log(size["m"]))


def _attention_work(size: Columns, word: Mapping[str, str]) -> tuple[Floats, Floats]:
    heads, kv_heads, batch, new = size["heads"], size["kv_heads"], size["batch"], size["new_tokens"]
    return 2 * batch * heads * new * (new + 1) * HEAD_DIM, 4 * batch * new * (heads + kv_heads) * HEAD_DIM


def _attention_near(size: Columns) -> Floats:
    kv, batch = np.log(size["kv_heads"]), np.log(size["batch"])
    return _logs(batch + kv, np.log(size["heads"]) - kv, np.log(size["new_tokens"]), batch)


def _decode_work(size: Columns, word: Mapping[str, str]) -> tuple[Floats, Floats]:
    heads, kv_heads, batch, context = size["heads"], size["kv_heads"], size["batch"], size["context_tokens"]
    return 4 * batch * heads * context * HEAD_DIM, 4 * batch * (kv_heads * context + heads) * HEAD_DIM


def _decode_near(size: Columns) -> Floats:
    kv, batch, group = np.log(size["kv_heads"]), np.log(size["batch"]), size["heads"] / size["kv_heads"]
    tiles = np.log(np.ceil(group / 16 - 1e-9))
    own, one = (group < 1.001).astype(float), (size["kv_heads"] < 1.001).astype(float)
    return _logs(batch + kv, np.log(group), np.log(size["context_tokens"]), batch, own, one, tiles)


def _mla_work(size: Columns, word: Mapping[str, str]) -> tuple[Floats, Floats]:
    heads, batch, new = size["heads"], size["batch"], size["isl"]
    pairs = batch * new * (new + 1) / 2
    return 4 * heads * pairs * MLA_HEAD, 4 * batch * new * heads * MLA_HEAD


def _mla_near(size: Columns) -> Floats:
    return _logs(np.log(size["heads"]) + np.log(size["batch"]), np.log(size["isl"]), np.log(size["batch"]))


def _mla_decode_work(size: Columns, word: Mapping[str, str]) -> tuple[Floats, Floats]:
    heads, batch, context = size["heads"], size["batch"], size["step"] + 1
    kept = _bytes(word["kv_dtype"]) * (MLA_RANK + MLA_ROPE)
    return 4 * batch * heads * context * MLA_RANK, batch * context * kept


def _mla_decode_near(size: Columns) -> Floats:
    return _logs(np.log(size["heads"]), np.log(size["batch"]), np.log(size["step"] + 1))


def _moe_work(size: Columns, word: Mapping[str, str]) -> tuple[Floats, Floats]:
    rows = size["tokens"] * size["topk"] / size["ep"]
    weights = 3 * size["hidden"] * size["inter"] / size["tp"]
    moved = _bytes(word["dtype"]) * weights * _experts_read(size) + 4 * rows * size["hidden"]
    return 2 * rows * weights, moved


def _experts_read(size: Columns) -> Floats:
    """Experts of one device that at least one token goes to, where routing is even."""
    missed = (1 - size["topk"] / size["experts"]) ** size["tokens"]
    return size["experts"] / size["ep"] * (1 - missed)


def _moe_near(size: Columns) -> Floats:
    rows = np.log(size["tokens"]) + np.log(size["topk"]) - np.log(size["experts"])
    local = np.log(size["experts"]) - np.log(size["ep"])
    return _logs(rows, local, np.log(size["inter"]) - np.log(size["tp"]), np.log(size["hidden"]), np.log(size["tp"]))


def _bytes(dtype: str) -> float:
    if dtype not in BYTES:
        raise UnknownName(f"there is no dtype {dtype!r}; there is {', '.join(BYTES)}{nearest(dtype, list(BYTES))}")
    return BYTES[dtype]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("gemm", ("m", "n", "k"), ("dtype",), ("n", "k"), (1, 1, 0.2), 16, _gemm_work, _gemm_near),
        Kind(
            "attention", ("heads", "kv_heads", "batch", "new_tokens"), (), ("heads", "kv_heads"), (1, 2, 1, 4), 48,
            _attention_work, _attention_near,
        ),
        Kind(
            "decode", ("heads", "kv_heads", "batch", "context_tokens"), (), ("heads", "kv_heads"),
            (1, 16, 1, 8, 0.5, 1, 1), 32, _decode_work, _decode_near,
        ),
        Kind(
            "mla", ("heads", "batch", "isl"), ("dtype", "kv_dtype", "gemm"), ("heads", "batch"), (1, 1, 4), 24,
            _mla_work, _mla_near,
        ),
        Kind(
            "mla_decode", ("heads", "batch", "step"), ("dtype", "kv_dtype", "gemm"), ("heads", "batch"), (1, 1, 1), 24,
            _mla_decode_work, _mla_decode_near,
        ),
        Kind(
            "moe", ("hidden", "inter", "topk", "experts", "tp", "ep", "tokens"), ("dtype", "routing"),
            ("hidden", "inter", "topk", "experts", "tp", "ep"), (1, 1, 1, 2, 4), 32, _moe_work, _moe_near,
        ),
    )
}  # fmt: skip


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise UnknownName(f"there is no operator {name!r}; there is {', '.join(KINDS)}{nearest(name, list(KINDS))}")
    return KINDS[name]
