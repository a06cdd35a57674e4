"""Tables of step times for the native engine: of a law, or of kernels that were measured on the machine itself.

Measured kernels (LLMServingSim's columns): dense layers by tokens, the head and the sampler by sequences, attention
by the tokens of prompts in a step, those before them, sequences that decode, and their context. Decodes take longer
in a step that also has prompts, so that part has a table of its own, of all four.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from openshelf import _core
from openshelf._texts import opened_text
from openshelf.errors import BadInput
from openshelf.twin.serve.law import ENGINES, StepLaw
from openshelf.twin.serve.model import ServedModel
from openshelf.twin.serve.work import Floats, Work

_TOKENS = np.unique(np.round(np.geomspace(1, 65536, 97)))
_CONTEXT = np.concatenate([[0.0], np.geomspace(16, 262144, 43)])
_SEQUENCES = np.unique(np.round(np.geomspace(1, 4096, 49)))
_WITH_ATTENTION = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj", "layernorm")
_NORMS = 2
"""Of a layer; `layernorm` is one of them."""


GRAPHS = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(544, 1025, 32), 2048, 4096]
"""Sizes of CUDA graphs that engines capture, unless told otherwise."""


def times_of_law(law: StepLaw, work: Work, engine: str, graphs: Sequence[int] = GRAPHS) -> _core.StepTimes:
    """What the law says of a setting, as tables."""
    made = _core.StepTimes()
    made.set("dense", [_TOKENS.tolist()], np.ascontiguousarray(law.dense(work, _TOKENS)))
    made.set("sampling", [[0.0, 1.0]], np.zeros(2))
    chunks, before = np.meshgrid(_TOKENS, _CONTEXT, indexing="ij")
    made.set("prefill", [_TOKENS.tolist(), _CONTEXT.tolist()], law.prefill(work, chunks, before).ravel())
    sequences, context = np.meshgrid(_SEQUENCES, _CONTEXT, indexing="ij")
    made.set("decode", [_SEQUENCES.tolist(), _CONTEXT.tolist()], law.decode(work, sequences, context).ravel())
    which = ENGINES.index(engine)
    made.host_s, made.host_sequence_s = law.host_s[which], law.sequence_s[which]
    made.eager_s = float(law.eager(work, which))
    made.graphs = list(graphs)
    return made


def times_of_kernels(
    folder: Path, model: ServedModel, graphs: Sequence[int] = (), host_s: float = 0.0, tensor: int = 1
) -> _core.StepTimes:
    """What a machine's own kernels say: `kernels_tpN_{dense,per_sequence,attention}.csv` of a folder."""
    dense = _columns(folder / f"kernels_tp{tensor}_dense.csv", "layer", "tokens")
    one = _columns(folder / f"kernels_tp{tensor}_per_sequence.csv", "layer", "sequences")
    missing = [name for name in (*_WITH_ATTENTION, "embedding", "final_layernorm") if name not in dense]
    if missing or "lm_head" not in one:
        raise BadInput(f"kernels in {folder} have no times of {', '.join(missing or ['lm_head'])}")
    made = _core.StepTimes()
    tokens = np.array(sorted(dense["qkv_proj"]), dtype=np.float64)
    layer = sum(_along(dense[name], tokens) * (_NORMS if name == "layernorm" else 1) for name in _WITH_ATTENTION)
    whole = layer * model.layers + _along(dense["embedding"], tokens) + _along(dense["final_layernorm"], tokens)
    made.set("dense", [tokens.tolist()], np.ascontiguousarray(whole))
    sequences = np.array(sorted(one["lm_head"]), dtype=np.float64)
    made.set("sampling", [sequences.tolist()], sum(_along(each, sequences) for each in one.values()))
    _set_attention(made, folder / f"kernels_tp{tensor}_attention.csv", model.layers)
    made.graphs, made.host_s = list(graphs), host_s
    return made


def _columns(path: Path, name: str, size: str) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    if not path.is_file():
        raise BadInput(f"there is no file {path}: expected measured kernels with columns {name}, {size}, time_us")
    with opened_text(path) as file, _numbers(path):
        for row in csv.DictReader(file):
            found.setdefault(row[name], {})[float(row[size])] = float(row["time_us"]) * 1e-6
    return found


@contextlib.contextmanager
def _numbers(path: Path) -> Iterator[None]:
    """BadInput where a column or a number is missing."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is no table of measured kernels: {error!r}") from None


def _along(times: dict[float, float], at: Floats) -> Floats:
    sizes = sorted(times)
    return np.interp(at, sizes, [times[size] for size in sizes])


def _set_attention(made: _core.StepTimes, path: Path, layers: int) -> None:
    with opened_text(path) as file, _numbers(path):
        rows = np.array(
            [
                [float(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")]
                for row in csv.DictReader(file)
            ]
        )
    prompts, decodes = rows[(rows[:, 2] == 0)], rows[rows[:, 0] == 0]
    both = rows[(rows[:, 0] > 0) & (rows[:, 2] > 0)]
    scale = 1e-6 * layers
    chunk_axes, chunk_table = _table(prompts[:, :2], prompts[:, 4])
    decode_axes, decode_table = _table(decodes[:, 2:4], decodes[:, 4])
    made.set("prefill", [axis.tolist() for axis in chunk_axes], (chunk_table * scale).ravel())
    made.set("decode", [axis.tolist() for axis in decode_axes], (decode_table * scale).ravel())
    alone = {(row[0], row[1]): row[4] for row in prompts}
    left = np.array([row[4] - alone.get((row[0], row[1]), 0.0) for row in both])
    axes, table = _table(both[:, :4], left)
    made.set("mixed", [axis.tolist() for axis in axes], (table * scale).ravel())


def _table(points: Floats, values: Floats) -> tuple[list[Floats], Floats]:
    """Points of a grid as an array; where one was not measured, it has the value of the nearest along the last axes."""
    axes = [np.unique(points[:, at]) for at in range(points.shape[1])]
    table = np.full([len(axis) for axis in axes], np.nan)
    table[tuple(np.searchsorted(axis, points[:, at]) for at, axis in enumerate(axes))] = values
    for axis in reversed(range(table.ndim)):
        for _ in range(table.shape[axis]):
            holes = np.isnan(table)
            if not holes.any():
                return axes, table
            table = np.where(holes, np.roll(table, 1, axis), table)
    return axes, table
