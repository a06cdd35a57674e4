"""Serving end to end: measured settings, each model predicted with constants that were fitted on the others.

A model is its architecture: DeepSeek-R1 and V3 are left out together. Settings that the data repeats are one, with
their median. The closed form, which is what is fitted, is beside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kit.side_by_side import Row
from openshelf.errors import NoRoom
from openshelf.twin.serve import (
    Predicted,
    Setting,
    StepLaw,
    closed_form,
    fit_law,
    predict,
    read_settings,
    rows_of,
    shipped,
)

Floats = NDArray[np.float64]
QUICK = 300


def rows(data: Path, quick: bool) -> Iterator[Row]:
    path = data / "serving" / "e2e_silicon.csv"
    if not path.exists():
        return
    settings, refused = read_settings(path)
    if not settings:
        yield Row(
            "work.e2e_answered",
            "lines that get an answer",
            0.0,
            "%",
            "",
            None,
            None,
            bar=">= 90",
            note="; ".join(refused[:2]),
        )
        return
    columns = rows_of(settings)
    names = np.array([each.model.name for each in settings])
    chosen = (
        range(len(settings))
        if not quick
        else sorted(np.random.default_rng(22).permutation(len(settings))[:QUICK].tolist())
    )
    told: dict[int, Predicted] = {}
    simple: dict[int, tuple[float, float]] = {}
    for name in sorted(set(names)):
        law = fit_law(columns, names != name) if (names != name).any() else of_package(settings)
        ttft, tpot = closed_form(law, columns)
        for at in chosen:
            if names[at] == name:
                simple[at] = float(ttft[at]), float(tpot[at])
                if (found := answered(settings[at], law)) is not None:
                    told[at] = found
    lines = sum(each.repeats for each in settings) + len(refused)
    yield from scored(settings, told, simple, names, f"{len(chosen)} of {len(settings)} settings, {lines} lines")
    all_of_them = sum(settings[at].repeats for at in chosen) + len(refused) * len(chosen) / len(settings)
    share = 100 * sum(settings[at].repeats for at in told) / all_of_them
    yield Row(
        "work.e2e_answered",
        "lines that get an answer",
        share,
        "%",
        "AIConfigurator 0.12 on a like sample: 44 %",
        share / 44,
        None,
        bar=">= 90",
        note="; ".join(refused[:2]),
    )
    yield order(settings, told)
    if not quick:
        for at, found in told.items():
            one = settings[at]
            yield Row(
                "work.e2e.row",
                one.case,
                100 * (found.tpot_s / one.tpot_s - 1),
                "%",
                "measured TPOT",
                found.tpot_s / one.tpot_s,
                None,
                note=f"not fitted; TTFT {100 * (found.ttft_s / one.ttft_s - 1):+.0f} %",
            )


def of_package(settings: Sequence[Setting]) -> StepLaw:
    """The package's law, where there is no other model to fit; it must not be made of what it judges."""
    from work.fit import hash_of, ledger

    assert not {hash_of(each) for each in settings} & ledger()["serving"], "a setting is fitted and judged"
    return shipped()


def answered(setting: Setting, law: StepLaw) -> Predicted | None:
    try:
        return predict(setting, law)
    except NoRoom:
        return None


def scored(
    settings: Sequence[Setting],
    told: dict[int, Predicted],
    simple: dict[int, tuple[float, float]],
    names: NDArray[np.str_],
    what: str,
) -> Iterator[Row]:
    found = sorted(told)
    for id_, bar, claim, measured, ours, other in (
        (
            "work.e2e_tpot",
            15,
            21,
            [settings[at].tpot_s for at in found],
            [told[at].tpot_s for at in found],
            [simple[at][1] for at in found],
        ),
        (
            "work.e2e_ttft",
            35,
            52,
            [settings[at].ttft_s for at in found],
            [told[at].ttft_s for at in found],
            [simple[at][0] for at in found],
        ),
    ):
        errors = 100 * np.abs(np.array(ours) / np.array(measured) - 1)
        simple_errors = 100 * np.abs(np.array(other) / np.array(measured) - 1)
        of_whom = np.array([names[at] for at in found])
        models = {}
        for name in sorted(set(of_whom)):
            own = of_whom == name
            models[str(name)] = Row(
                id_ + ".model", f"{name} left out, median ({own.sum()} settings)", float(np.median(errors[own])), "%",
                f"closed form {np.median(simple_errors[own]):.1f} %", None, None,
                p99=float(np.quantile(errors[own], 0.9)), note="p99 column: p90; not fitted",
            )  # fmt: skip
        worst = max(models.values(), key=lambda row: row.value or 0)
        middle = float(np.median(errors))
        yield Row(
            id_, f"worst model: {worst.case}", worst.value, "%", worst.peer, None, None, p99=worst.p99, bar=f"<= {bar}",
            note=f"median of all models' settings {middle:.1f} % ({id_}.all)",
        )  # fmt: skip
        yield Row(
            id_ + ".all", f"median error of all settings, each with its model left out ({what})", middle, "%",
            f"AIConfigurator 0.12 on a like sample: {claim} %", middle / claim, None,
            p99=float(np.quantile(errors, 0.9)),
            note=f"p99 column: p90; closed form {np.median(simple_errors):.1f} %",
        )  # fmt: skip
        yield from models.values()


def order(settings: Sequence[Setting], told: dict[int, Predicted]) -> Row:
    """Settings of one machine, model and lengths, by tokens a second of an accelerator."""
    groups = defaultdict(list)
    for at, found in told.items():
        one = settings[at]
        count = (
            one.prefill_workers * one.plan.accelerators + one.decode_workers * one.decode_plan.accelerators
            if one.decode_plan
            else one.plan.accelerators
        )
        speeds = [
            one.concurrency / (ttft + one.output_tokens * tpot) / count
            for ttft, tpot in ((one.ttft_s, one.tpot_s), (found.ttft_s, found.tpot_s))
        ]
        groups[one.device.name, one.name, one.input_tokens, one.output_tokens].append(speeds)
    taus = [kendall(np.array(each)) for each in groups.values() if len(each) >= 5]
    if not taus:
        return Row("work.rank", "too few settings of one kind", None, "tau", "measured order", None, None, bar=">= 0.8")
    return Row(
        "work.rank",
        f"Kendall's tau of tokens a second of an accelerator, median of {len(taus)} groups",
        float(np.median(taus)),
        "tau",
        "measured order",
        None,
        None,
        bar=">= 0.8",
        note=f"worst {min(taus):.2f}",
    )


def kendall(pairs: Floats) -> float:
    one, other = (np.sign(pairs[:, at][:, None] - pairs[:, at][None, :]) for at in (0, 1))
    upper = np.triu_indices(len(pairs), 1)
    return float((one * other)[upper].sum() / max(1, np.abs(one * other)[upper].sum()))
