"""Predicted against measured time of plans, for models and budgets that are used for nothing else.

Operators and lanes are measured in the same run as the plan, just before it. A budget is a share of what the model
needs if nothing moves, or the least that works where that is more.
"""

from __future__ import annotations

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

import page_cache
from openshelf import offload
from openshelf.offload._calibrate import calibrate
from openshelf.offload._lifetimes import lifetimes
from openshelf.offload._plan import make_plan
from side_by_side import Report, Row, arguments

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
    errors, notes = [], []
    for name, model, inputs, trains, shares in cases():
        if quick and name not in ("Llama", "GPT-2"):
            continue
        rates = calibrate(folder)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if trains else None
        whole = offload.plan(
            model, inputs, "8GiB", optimizer=optimizer, fabric=rates, cache=False, time_limit=0.1
        ).captured
        known = lifetimes(whole.program)
        for share in shares:
            room = max(int(known.live_peak * share), known.least)
            plan = make_plan(whole.program, room, rates, time_limit=2.0 if quick else 10.0, cache=False)
            check = offload.ModelPlan(whole, plan, ((), inputs)).check(repeats=5, folder=folder)
            errors.append(abs(check.predicted_s / check.measured_s - 1))
            kind = "trained" if trains else "run"
            notes.append(
                f"{name}, {kind}, {room / known.live_peak:.0%}: {check.predicted_s:.3f} / {check.measured_s:.3f}"
            )
    report.add(
        Row(
            "offload.predict", f"predicted against measured seconds, median of {len(errors)} models and budgets",
            statistics.median(errors), "", "the run", None, None, max(errors), None, "<= 0.10", "; ".join(notes),
        )
    )  # fmt: skip


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
