"""The kinds of operators: which columns a shape has, what work it is, and which shapes are near each other.

The work is a few parts, each in the seconds that an accelerator's rates as sold would need: a law (laws.py) says how
many times as long each part takes.

Near is measured in a few coordinates, mostly logarithms, where times of real kernels are smooth. Decoding, for one,
reads the keys of `batch * kv_heads` sequences whatever the two factors are, but kernels differ where there is one head
of keys, and where each head has its own. `scales` says how far two shapes may be apart, in each coordinate, before
they say nothing about each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import UnknownName
from openshelf.fabric import nearest

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

HEAD_DIM = 128  # of the attention rows
MLA_RANK, MLA_ROPE, MLA_HEAD = 512, 64, 192
_TILE = 16  # rows that a kernel computes at once
_POWER = 0.8  # of the shares of experts, by rank
BYTES = {
    "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "nvfp4": 0.5625,
    "w4a16_mxfp4": 0.53125, "int8_wo": 1.0, "int4_wo": 0.53125, "sq": 1.0, "w4afp8": 0.53125, "fp8_ootb": 1.0,
    "fp8_static": 1.0, "w4a8_mxfp4_mxfp8": 0.53125,
}  # fmt: skip
"""Bytes of a weight, with its scales."""
MATHS = {
    "fp8_block": "fp8", "w4a16_mxfp4": "bfloat16", "float16": "bfloat16", "int8_wo": "bfloat16", "int4_wo": "bfloat16",
    "sq": "int8", "w4afp8": "fp8", "fp8_ootb": "fp8", "fp8_static": "fp8", "w4a8_mxfp4_mxfp8": "fp8",
}  # fmt: skip
"""Dtypes whose products are computed at the rate of another."""


class Rates(Protocol):
    """What parts are computed from: an accelerator's rates as sold."""

    @property
    def memory_bytes_per_s(self) -> float: ...

    def peak(self, dtype: str) -> float: ...


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
    parts: Callable[[Columns, Mapping[str, str], Rates], dict[str, Floats]]
    """Seconds of computing and of moving bytes at the rates as sold, by what is computed or moved."""
    coordinates: Callable[[Columns], Floats]
    nearest: float = 0.0
    """The weight of the nearest row's own time beside what is interpolated: where that row often is the same work."""


def _logs(*columns: Floats) -> Floats:
    return np.stack(columns, axis=1)


def _two(flop: Floats, moved: Floats, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    return {"compute": flop / rates.peak(word.get("dtype", "bfloat16")), "memory": moved / rates.memory_bytes_per_s}


def _gemm_parts(size: Columns, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    m, n, k = size["m"], size["n"], size["k"]
    return _two(2 * m * n * k, _bytes(word["dtype"]) * (m * k + n * k) + 2 * m * n, word, rates)


def _gemm_near(size: Columns) -> Floats:
    return _logs(np.log(size["n"]), np.log(size["k"]), np.log(size["m"]))


def _attention_parts(size: Columns, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    heads, kv_heads, batch, new = size["heads"], size["kv_heads"], size["batch"], size["new_tokens"]
    flop = 2 * batch * heads * new * (new + 1) * HEAD_DIM
    return _two(flop, 4 * batch * new * (heads + kv_heads) * HEAD_DIM, word, rates)


def _attention_near(size: Columns) -> Floats:
    kv, heads, batch = np.log(size["kv_heads"]), np.log(size["heads"]), np.log(size["batch"])
    return _logs(batch + kv, heads - kv, np.log(size["new_tokens"]), batch, batch + heads)


def _decode_parts(size: Columns, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    heads, kv_heads, batch, context = size["heads"], size["kv_heads"], size["batch"], size["context_tokens"]
    moved = 4 * batch * (kv_heads * context + heads) * HEAD_DIM
    return _two(4 * batch * heads * context * HEAD_DIM, moved, word, rates)


def _decode_near(size: Columns) -> Floats:
    kv, batch, group = np.log(size["kv_heads"]), np.log(size["batch"]), size["heads"] / size["kv_heads"]
    tiles = np.log(np.ceil(group / 16 - 1e-9))
    own, one = (group < 1.001).astype(float), (size["kv_heads"] < 1.001).astype(float)
    return _logs(batch + kv, np.log(group), np.log(size["context_tokens"]), batch, own, one, tiles)


def _mla_parts(size: Columns, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    heads, batch, new = size["heads"], size["batch"], size["isl"]
    pairs = batch * new * (new + 1) / 2
    return _two(4 * heads * pairs * MLA_HEAD, 4 * batch * new * heads * MLA_HEAD, word, rates)


def _mla_near(size: Columns) -> Floats:
    return _logs(np.log(size["heads"]) + np.log(size["batch"]), np.log(size["isl"]), np.log(size["batch"]))


def _mla_decode_parts(size: Columns, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    heads, batch, context = size["heads"], size["batch"], size["step"] + 1
    kept = _bytes(word["kv_dtype"]) * (MLA_RANK + MLA_ROPE)
    return _two(4 * batch * heads * context * MLA_RANK, batch * context * kept, word, rates)


def _mla_decode_near(size: Columns) -> Floats:
    return _logs(np.log(size["heads"]), np.log(size["batch"]), np.log(size["step"] + 1))


def _moe_parts(size: Columns, word: Mapping[str, str], rates: Rates) -> dict[str, Floats]:
    """Computing goes by tiles of rows of each expert. Kernels of one device touch the rows of all tokens."""
    pairs, inner = size["tokens"] * size["topk"], size["inter"] / size["tp"]
    weights, read = 3 * size["hidden"] * inner, experts_read(size, word["routing"])
    tiled = np.maximum(pairs / size["ep"] + read * _TILE / 2, read * _TILE)
    memory = rates.memory_bytes_per_s
    return {
        "compute": 2 * tiled * weights / rates.peak(word["dtype"]),
        "memory": _bytes(word["dtype"]) * weights * read / memory,
        "rows": 2 * pairs * size["hidden"] / memory,
        "inner": 2 * pairs * inner / memory,
        "experts": 1e-6 * read,
    }


def experts_read(size: Columns, routing: str) -> Floats:
    """Experts of one device that at least one token goes to: as many as possible where routing is balanced, else as
    drawn by a power law."""
    experts, pairs = size["experts"], size["tokens"] * size["topk"]
    if routing == "balanced":
        found = np.minimum(experts, pairs)
    else:
        found = np.empty(len(experts))
        for count in np.unique(experts):
            at = experts == count
            share = np.arange(1, count + 1) ** -_POWER
            found[at] = (1 - np.exp(-pairs[at, None] * share / share.sum())).sum(axis=1)
    made: Floats = np.maximum(found / size["ep"], 1)
    return made


def _moe_near(size: Columns) -> Floats:
    rows = np.log(size["tokens"]) + np.log(size["topk"]) - np.log(size["experts"])
    local = np.log(size["experts"]) - np.log(size["ep"])
    inner = np.log(size["inter"]) - np.log(size["tp"])
    return _logs(rows, local, inner, np.log(size["hidden"]), np.log(size["tokens"]))


def _bytes(dtype: str) -> float:
    """Of a dtype that only a table knows, two: the law that is fitted to its rows makes up for it."""
    return BYTES.get(dtype, 2.0)


def check_dtypes(words: Mapping[str, str]) -> None:
    """Where no table answers, a dtype must be known."""
    for name, dtype in words.items():
        if name != "routing" and dtype not in BYTES:
            raise UnknownName(f"there is no dtype {dtype!r}; there is {', '.join(BYTES)}{nearest(dtype, list(BYTES))}")


KINDS = {
    kind.name: kind
    for kind in (
        Kind("gemm", ("m", "n", "k"), ("dtype",), ("n", "k"), (1, 1, 0.2), 16, _gemm_parts, _gemm_near),
        Kind(
            "attention", ("heads", "kv_heads", "batch", "new_tokens"), (), ("heads", "kv_heads"), (2, 8, 2, 32, 3), 40,
            _attention_parts, _attention_near,
        ),
        Kind(
            "decode", ("heads", "kv_heads", "batch", "context_tokens"), (), ("heads", "kv_heads"),
            (1, 32, 1, 32, 0.5, 1, 1), 32, _decode_parts, _decode_near, 0.5,
        ),
        Kind(
            "mla", ("heads", "batch", "isl"), ("dtype", "kv_dtype", "gemm"), ("heads", "batch"), (1, 1, 4), 24,
            _mla_parts, _mla_near,
        ),
        Kind(
            "mla_decode", ("heads", "batch", "step"), ("dtype", "kv_dtype", "gemm"), ("heads", "batch"), (1, 1, 1), 24,
            _mla_decode_parts, _mla_decode_near,
        ),
        Kind(
            "moe", ("hidden", "inter", "topk", "experts", "tp", "ep", "tokens"), ("dtype", "routing"),
            ("hidden", "inter", "topk", "experts", "tp", "ep"), (2, 2, 2, 2, 4), 32, _moe_parts, _moe_near,
        ),
    )
}  # fmt: skip


def kind_of(name: str) -> Kind:
    if name not in KINDS:
        raise UnknownName(f"there is no operator {name!r}; there is {', '.join(KINDS)}{nearest(name, list(KINDS))}")
    return KINDS[name]
