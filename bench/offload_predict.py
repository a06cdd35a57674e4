"""Predicted against measured time and memory of plans, for models and budgets that are used for nothing else.

In rounds: operators and lanes are measured, then the plans are run. The shortest prediction of all rounds is compared
with the shortest run, for what disturbs a machine comes and goes. A budget is a share of what the model needs if
nothing moves, or the least that works where that is more.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from kit import page_cache
from kit.side_by_side import Report, Row, arguments
from offload import spread
from openshelf import offload
from openshelf.offload import Plan, calibrate, lifetimes, make_plan, measured, simulate

VOCABULARY = 4096


def cases() -> Iterator[tuple[str, Any, dict[str, Any], bool, tuple[float, ...]]]:
    """Name, model, inputs, whether it trains, shares of the memory."""
    common: dict[str, Any] = {"vocab_size": VOCABULARY, "use_cache": False}
    large = {"hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 6, "intermediate_size": 2816}
    small = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 1408}
    llama = LlamaConfig(**common, **large, num_key_value_heads=2)
    yield "Llama", LlamaForCausalLM(llama).eval(), texts(1, 192), False, (0.6, 0.2)
    qwen = Qwen3Config(**common, **small, num_key_value_heads=4, head_dim=64)
    yield "Qwen3", Qwen3ForCausalLM(qwen).train(), texts(2, 160, labels=True), True, (0.7, 0.35)
    gpt2 = GPT2LMHeadModel(GPT2Config(**common, n_embd=640, n_layer=5, n_head=10, n_positions=256))
    gpt2.loss_type = "ForCausalLM"
    yield "GPT-2", gpt2.train(), texts(2, 128, labels=True), True, (0.6, 0.3)
    vit = ViTConfig(image_size=160, patch_size=16, num_labels=100, **(large | {"num_hidden_layers": 8}))
    yield "ViT", ViTForImageClassification(vit).eval(), {"pixel_values": torch.rand(2, 3, 160, 160)}, False, (0.5, 0.25)
    mixtral = MixtralConfig(**common, **small, num_local_experts=8, experts_implementation="grouped_mm")
    yield "Mixtral", MixtralForCausalLM(mixtral).eval(), texts(1, 256), False, (0.5, 0.3)
    deep = LlamaConfig(**common, **(small | {"num_hidden_layers": 16}))
    yield "deep Llama", LlamaForCausalLM(deep).train(), texts(1, 128, labels=True), True, (0.5, 0.25)


def texts(count: int, length: int, *, labels: bool = False) -> dict[str, Any]:
    ids = torch.randint(0, VOCABULARY, (count, length))
    return {"input_ids": ids, "labels": ids} if labels else {"input_ids": ids}


def predicting(report: Report, folder: Path, quick: bool) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(2)
    errors, peaks, spreads, notes = [], [], [], []
    for name, model, inputs, trains, shares in itertools.islice(cases(), 0, 3 if quick else None, 2 if quick else 1):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if trains else None
        for plan, predicted, times, peak in rounds_of(
            model, inputs, optimizer, shares[:1] if quick else shares, folder, quick
        ):
            shortest = min(times)
            errors.append(abs(predicted / shortest - 1))
            spreads.append(spread(times))
            peaks.append(abs(peak))
            kind, share = "trained" if trains else "run", plan.budget / lifetimes(plan.program).live_peak
            notes.append(f"{name}, {kind}, {share:.0%}: {predicted:.3f} / {shortest:.3f}")
    report.add(
        Row(
            "offload.predict", f"predicted against measured seconds, median of {len(errors)} models and budgets",
            statistics.median(errors), "", "the run", None, statistics.median(spreads), max(errors), None, "<= 0.10",
            "; ".join(notes),
        )
    )  # fmt: skip
    report.add(
        Row(
            "offload.predict_peak",
            f"predicted against measured bytes: the arena, and what torch took beside it; worst of {len(peaks)}",
            max(peaks), "", "the run", None, None, statistics.median(peaks), None, "<= 0.01",
        )
    )  # fmt: skip


def rounds_of(
    model: Any, inputs: dict[str, Any], optimizer: Any, shares: tuple[float, ...], folder: Path, quick: bool
) -> Iterator[tuple[Plan, float, list[float], float]]:
    """Plans for shares of the memory, the shortest time predicted, those measured, and the error of the peak."""
    rates = calibrate(folder)
    whole = offload.plan(model, inputs, "8GiB", optimizer=optimizer, fabric=rates, cache=False, time_limit=0.1).captured
    known = lifetimes(whole.program)
    rooms = [max(int(known.live_peak * share), known.least) for share in shares]
    limit = 1.0 if quick else 10.0
    plans = [make_plan(whole.program, room, rates, stay=True, time_limit=limit, cache=False) for room in rooms]
    predicted, peaks = [math.inf for _ in plans], [0.0 for _ in plans]
    taken: list[list[float]] = [[] for _ in plans]
    for _ in range(2 if quick else 4):
        rates, program = calibrate(folder), measured(whole).program
        for at, plan in enumerate(plans):
            predicted[at] = min(predicted[at], simulate(program, plan.steps, rates, plan.homes).seconds)
            check = offload.ModelPlan(whole, plan, ((), inputs)).check(repeats=3, folder=folder)
            taken[at].append(check.measured_s)
            peaks[at] = max(peaks[at], check.peak_error, key=abs)
    for at, plan in enumerate(plans):
        yield plan, predicted[at], taken[at], peaks[at]


def main() -> None:
    args = arguments(__doc__ or "")
    report = Report("Offload: predicted against measured")
    with (
        tempfile.TemporaryDirectory(dir=page_cache.disk(), prefix="openshelf-bench-") as at,
        Console(stderr=True).status("predicting..."),
    ):
        os.environ["OPENSHELF_CACHE"] = os.environ["XDG_CACHE_HOME"] = at
        predicting(report, Path(at), args.quick)
    report.finish(args.json)


if __name__ == "__main__":
    main()
