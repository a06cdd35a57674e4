"""work.megatron, work.vtrain1, work.vtrain, work.mlperf, work.activations, work.dualpipe: training steps.

vTrain: every shape of model is left out once; five constants are fitted to the steps of the others, in a node and on
many. Megatron's batches are predicted by the constants that come with the package, which are of vTrain's steps. MLPerf:
every system is left out once; five constants. Beside: a constant MFU, the median of the rows that were fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from kit.side_by_side import Row
from openshelf.twin.ops import fit_slowness
from openshelf.workloads.train import Plan, activations_of_layer, constants_of, fit_constants, gpt, step_of
from work import dualpipe
from work.steps import Measured, megatron, mlperf, mlperf_left_out, vtrain

START = {"compute": 1.4, "memory": 1.2, "host": 25.0, "gap": 0.0, "inside": 1.2, "between": 1.4}
VTRAIN = ("compute", "memory", "host", "inside", "between")
ONE = {"compute": 1.0, "memory": 0.0, "host": 0.0, "gap": 1.0, "inside": 1.0, "between": 1.0}
MOST = 200  # steps in a node that are fitted at once
NEMO = (1.9391, 0.1781, 0.0, 0.9776, 19.7635)  # as bench/work/fit.py prints them, of the newest software
SIMPLE = "constant MFU"


def rows(data: Path, quick: bool) -> Iterator[Row]:
    yield from _megatron_rows(megatron(data), quick)
    yield from _vtrain_rows(vtrain(data, "single_node"), vtrain(data, "multi_node"), quick)
    yield from _mlperf_rows(list(mlperf(data)), mlperf_left_out(data))
    yield from _activation_rows()
    yield from dualpipe.rows(data)


def _absent(id: str, bar: str) -> Row:
    return Row(id, "", None, "%", "", None, None, bar=bar, note="no data here")


def _row(id: str, case: str, said: float, each: Measured, note: str = "") -> Row:
    error = 100 * abs(said / each.seconds - 1)
    note = f"measured {each.seconds:.4g} s, said {said:.4g} s, not fitted{note}"
    return Row(id, case, error, "%", "measured", said / each.seconds, None, note=note)


def _megatron_rows(found: list[Measured], quick: bool) -> Iterator[Row]:
    if not found:
        yield _absent("work.megatron", "<= 6")
        return
    constants = constants_of("megatron")
    said = [step_of(each.model, each.plan, each.cluster, constants.of(each.plan)).seconds for each in found]
    made = [_row("work.megatron.row", each.name, one, each) for each, one in zip(found, said, strict=True)]
    worst = max(row.value or 0 for row in made)
    yield Row("work.megatron", "each batch, the worst", worst, "%", "", None, None, bar="<= 6", note=constants.source)
    yield from made


def fitted_of(cases: Sequence[Measured]) -> list[Measured]:
    """The steps that `fit_vtrain` looks at: all on many nodes, and as many in a node as it takes."""
    one = [each for each in cases if each.name == "single_node"]
    return one[:: max(1, len(one) // MOST)] + [each for each in cases if each.name != "single_node"]


def fit_vtrain(cases: Sequence[Measured]) -> dict[str, float]:
    """Five constants; steps on many nodes are few, and count as much as those in a node."""
    used = fitted_of(cases)
    many = sum(each.name != "single_node" for each in used)
    often = max(1, round((len(used) - many) / max(1, many)))
    times = [1 if each.name == "single_node" else often for each in used]
    return fit_constants([each.case for each in used], VTRAIN, START, times)


def _shipped(judged: Sequence[Measured], name: str) -> dict[str, float]:
    """The package's constants, where no other row is there to fit; they must not be made of those that they judge."""
    from work.fit import ledger

    assert not {each.hash for each in judged} & ledger()[name], f"{name}: a row is fitted and judged"
    return dict(constants_of("megatron").slower)


def _vtrain_rows(one: list[Measured], many: list[Measured], quick: bool) -> Iterator[Row]:
    every = one + many
    said: dict[str, float] = {}
    flat: dict[str, float] = {}
    for group in sorted({each.group for each in every}):
        judged, kept = [e for e in every if e.group == group], [e for e in every if e.group != group]
        assert not {each.hash for each in judged} & {each.hash for each in kept}
        slower = fit_vtrain(kept) if kept else _shipped(judged, "megatron")
        usual = _median_mfu(kept or judged)
        for each in judged:
            said[each.hash] = step_of(each.model, each.plan, each.cluster, slower).seconds
            flat[each.hash] = _at_mfu(each, usual)
    for id, bar, found, what in (
        ("work.vtrain1", 8, one, "steps in a node"),
        ("work.vtrain", 10, many, "steps on many nodes"),
    ):
        if not found:
            yield _absent(id, f"<= {bar}")
            continue
        yield from _medians(id, bar, found, said, flat, f"vTrain's {what}, shapes left out", quick)


def _medians(
    id: str,
    bar: int,
    found: list[Measured],
    said: dict[str, float],
    flat: dict[str, float],
    what: str,
    quick: bool,
    more: str = "",
) -> Iterator[Row]:
    errors = {each.hash: 100 * abs(said[each.hash] / each.seconds - 1) for each in found}
    simple = median(100 * abs(flat[each.hash] / each.seconds - 1) for each in found)
    value, p90 = median(errors.values()), float(np.percentile(list(errors.values()), 90))
    note = f"{len(found)} rows, none fitted; p90 {p90:.0f} %; constant MFU {simple:.0f} %{more}"
    yield Row(id, what, value, "%", SIMPLE, simple / value, None, bar=f"<= {bar}", note=note)
    shown = [] if quick and len(found) > 100 else found
    for each in shown:
        plan = each.plan
        degrees = f"dp {plan.dp} tp {plan.tp} pp {plan.pp} cp {plan.cp}, micro-batch {plan.micro_batch}"
        case = f"{each.group}, {degrees}" if not each.round else f"{each.name}, {degrees}"
        yield _row(f"{id}.row", case, said[each.hash], each)


def _flop_rate(each: Measured) -> float:
    return each.cluster.accelerator.peak(each.plan.dtype) * each.cluster.count


def _median_mfu(found: Sequence[Measured]) -> float:
    return median(each.model.step_flop(each.plan.global_batch) / (each.seconds * _flop_rate(each)) for each in found)


def _at_mfu(each: Measured, mfu: float) -> float:
    return each.model.step_flop(each.plan.global_batch) / (mfu * _flop_rate(each))


def mlperf_columns(each: Measured, newest: str) -> list[float]:
    """What five constants multiply: computing, more of it on Blackwell, more there with older software, more in four
    bits; and gaps between kernels."""
    found = step_of(each.model, each.plan, each.cluster, ONE).by_cause
    compute, new = found["compute"], "nvfp4" in each.cluster.accelerator.flop_per_s
    old = new and each.round < newest
    return [compute, compute * new, compute * old, compute * (each.plan.dtype == "nvfp4"), found["gap"]]


def _mlperf_rows(found: list[Measured], note: str) -> Iterator[Row]:
    if not found:
        yield _absent("work.mlperf", "<= 8")
        return
    newest = max(each.round for each in found)
    shares = np.array([np.array(mlperf_columns(each, newest)) / each.seconds for each in found])
    said: dict[str, float] = {}
    flat: dict[str, float] = {}
    for group in sorted({each.group for each in found}):
        judged = np.array([each.group == group for each in found])
        if judged.all():
            slower = np.array(NEMO)
            _shipped(found, "nemo")
        else:
            slower = fit_slowness(shares[~judged])
        usual = _median_mfu([each for each in found if each.group != group] or found)
        for at in np.flatnonzero(judged):
            said[found[at].hash] = float(shares[at] @ slower) * found[at].seconds
            flat[found[at].hash] = _at_mfu(found[at], usual)
    yield from _medians("work.mlperf", 8, found, said, flat, "MLPerf, one system left out", False, note)


def _activation_rows() -> Iterator[Row]:
    """Against Korthikanti et al. 2022: sbh (34 + 5as/h) of a layer, and what parallelism and recomputation leave."""
    model = gpt("gpt3-175b", 12288, 96, 96, 2048)
    whole, t = 2048 * 12288.0, 8
    scores = 5 * 96 * 2048 / 12288
    published = {
        "no parallelism": (Plan(flash=False), whole * (34 + scores)),
        "tensor": (Plan(tp=t, flash=False), whole * (10 + 24 / t + scores / t)),
        "tensor and sequence": (Plan(tp=t, sequence_parallel=True, flash=False), whole / t * (34 + scores)),
        "tensor, selective": (Plan(tp=t, recompute="selective", flash=False), whole * (10 + 24 / t)),
        "tensor and sequence, selective": (
            Plan(tp=t, sequence_parallel=True, recompute="selective", flash=False), whole * 34 / t,
        ),
        "full recomputation": (Plan(tp=t, recompute="full", flash=False), whole * 2),
    }  # fmt: skip
    made = []
    for name, (plan, expected) in published.items():
        value = activations_of_layer(model, plan)
        error = 100 * abs(value / expected - 1)
        note = f"{value / 1e6:.1f} MB, published {expected / 1e6:.1f} MB"
        made.append(Row("work.activations.case", name, error, "%", "published", value / expected, None, note=note))
    worst = max(row.value or 0 for row in made)
    yield Row("work.activations", "activations of a layer, the worst", worst, "%", "", None, None, bar="<= 5")
    yield from made
