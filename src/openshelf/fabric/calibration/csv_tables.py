"""CSV tables of measured collectives and MoE exchanges, told apart by their columns.

| columns | rows |
|---|---|
| system, nccl, op, gpus, bytes, us | collectives in a node, by version of the library |
| what, op, gpus, nvlink_domain, bytes, us | collectives of many ranks, so many of them in each domain |
| system, kernel, version, dtype, gpus, elements, us | all-reduce by kernels of inference engines, by elements |
| system, kernel, phase, moe_dtype, tokens_per_rank, hidden, topk, experts, ranks, us | MoE exchange in a domain |
| system, mode, nodes, hidden, tokens, topk, experts, sms, dispatch_us, combine_us | DeepEP over nodes |

Times are in microseconds. What a combine sends is bfloat16 whatever the experts compute in, but where it says low
precision; DeepEP dispatches fp8, and its low-latency kernels send a token once to each expert.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from openshelf.errors import BadInput
from openshelf.fabric.calibration.series import NAMES, Series, TokenRow
from openshelf.fabric.laws.tokens import BYTES

_ONE_NODE = {"system", "nccl", "op", "gpus", "bytes", "us"}
_MANY = {"what", "op", "gpus", "nvlink_domain", "bytes", "us"}
_KERNELS = {"system", "kernel", "version", "dtype", "gpus", "elements", "us"}
_TOKENS = {"system", "kernel", "phase", "moe_dtype", "tokens_per_rank", "hidden", "topk", "experts", "ranks", "us"}
_DEEPEP = {"system", "mode", "nodes", "hidden", "tokens", "topk", "experts", "sms", "dispatch_us", "combine_us"}
_ELEMENT = {
    "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "float8": 1, "fp8": 1, "int8": 1,
}  # fmt: skip


def is_table(text: str) -> bool:
    """Whether this is one of the tables."""
    columns = set(text.split("\n", 1)[0].strip().split(","))
    return any(columns >= each for each in (_ONE_NODE, _MANY, _KERNELS, _TOKENS, _DEEPEP))


def is_token_table(path: str | Path) -> bool:
    """Whether a file is a table of MoE exchanges; not so if it cannot be read, which its reader will say."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            columns = set(file.readline().strip().split(","))
    except OSError:
        return False
    return columns >= _TOKENS or columns >= _DEEPEP


def series_of(text: str, file: str) -> list[Series]:
    """The series of a table of collectives."""
    found: defaultdict[tuple[str, str, str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for line, row in _rows(text):
        try:
            key, nbytes = _key(row)
            found[key].append((nbytes, float(row["us"]) * 1e-6))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BadInput(f"{file}, line {line}: no row of measured collectives: {error}") from None
    return [
        Series(machine, kind, ranks, per_node, tuple(sorted(points)), library)
        for (machine, library, kind, ranks, per_node), points in found.items()
    ]


def _key(row: Mapping[str, str]) -> tuple[tuple[str, str, str, int, int], int]:
    if "elements" in row:
        ranks = int(row["gpus"])
        library = f"{row['kernel']} {row['version']}"
        if row["dtype"] not in _ELEMENT:
            raise ValueError(f"dtype is {row['dtype']!r}; expected one of {', '.join(_ELEMENT)}")
        return (row["system"], library, "all_reduce", ranks, ranks), int(row["elements"]) * _ELEMENT[row["dtype"]]
    if "op" not in row:
        raise ValueError("it is a table of MoE exchanges")
    kind, ranks = NAMES.get(row["op"].removesuffix("_perf"), row["op"].removesuffix("_perf")), int(row["gpus"])
    if "nvlink_domain" in row:
        return (row["what"], "", kind, ranks, min(ranks, int(row["nvlink_domain"]))), int(row["bytes"])
    return (row["system"], f"nccl {row['nccl']}", kind, ranks, ranks), int(row["bytes"])


def read_tokens(path: str | Path) -> list[TokenRow]:
    """The rows of a table of MoE exchanges; raises BadInput if it is none."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read measurements from {str(file)!r}: {error.strerror}") from error
    made: list[TokenRow] = []
    for line, row in _rows(text):
        try:
            made += [_possible(each) for each in (_of_domain(row) if "moe_dtype" in row else _of_nodes(row))]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BadInput(f"{file}, line {line}: no row of a measured MoE exchange: {error}") from None
    return made


def _possible(row: TokenRow) -> TokenRow:
    if not (row.tokens > 0 and row.units > 0 and row.hidden > 0 and 0 < row.topk <= row.experts):
        raise ValueError(
            f"{row.tokens} tokens of {row.hidden} values to {row.topk} of {row.experts} experts over {row.units} units"
        )
    if not 0 < row.seconds < float("inf"):
        raise ValueError(f"it took {row.seconds} s; expected a number above 0")
    return row


def _of_domain(row: Mapping[str, str]) -> list[TokenRow]:
    phase = row["phase"]
    sent = {"prepare": "none", "combine": "bfloat16", "combine_low_precision": "fp8"}.get(phase, row["moe_dtype"])
    if sent not in BYTES:
        raise ValueError(f"moe_dtype is {sent!r}; expected one of {', '.join(BYTES)}")
    return [
        TokenRow(
            row["system"], row["kernel"], phase, "", int(row["ranks"]), int(row["tokens_per_rank"]),
            int(row["hidden"]), int(row["topk"]), int(row["experts"]), BYTES[sent], "units", float(row["us"]) * 1e-6,
        )
    ]  # fmt: skip


def _of_nodes(row: Mapping[str, str]) -> list[TokenRow]:
    early = row["mode"] == "ll"
    setting = f"{row['sms']} SMs" if row["sms"] else ""
    parts = {"dispatch": "fp8", "combine": "bfloat16", "dispatch_notify": "none", "combine_notify": "none"}
    return [
        TokenRow(
            row["system"], f"DeepEP {row['mode']}", phase, setting, int(row["nodes"]), int(row["tokens"]),
            int(row["hidden"]), int(row["topk"]), int(row["experts"]), BYTES[sent], "experts" if early else "units",
            float(row[f"{phase}_us"]) * 1e-6,
        )
        for phase, sent in parts.items()
        if float(row.get(f"{phase}_us") or 0) > 0
    ]  # fmt: skip


def _rows(text: str) -> list[tuple[int, dict[str, str]]]:
    try:
        return list(enumerate(csv.DictReader(io.StringIO(text)), 2))
    except csv.Error as error:
        raise BadInput(f"the table cannot be read as CSV: {error}") from None
