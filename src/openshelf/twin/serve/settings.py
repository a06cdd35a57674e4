"""Measured serving settings: rows of end-to-end measurements, one for each setting, read from AIConfigurator's columns.

Two traps of that table are dealt with here. Where experts are cut both ways among the same accelerators, `tp` holds
the product of both degrees (64 on a node of 8). Settings that are measured several times differ in what the table
does not say: their medians are one setting.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from openshelf._texts import opened_text
from openshelf.errors import BadInput, UnknownName
from openshelf.twin.ops import Accelerator, accelerator
from openshelf.twin.serve.law import ENGINES
from openshelf.twin.serve.model import ServedModel, find_model
from openshelf.twin.serve.work import Plan

LENGTHS = 0.9
"""Lengths are drawn from 0.8 to 1.0 of what the table says."""
_DTYPES = {"": "bfloat16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4"}
_SIGNS = {"trt": "trtllm", "tensorrt": "trtllm", "sglang": "sglang", "vllm": "vllm"}
_NEEDED = ("model", "system", "backend", "isl", "osl", "ttft_ms", "tpot_ms")
_LINKS = {"b": 900e9, "g": 900e9, "a": 300e9, "l": 32e9}


@dataclass(frozen=True)
class Setting:
    """One setting and what was measured: seconds to the first token, and for each one after it."""

    name: str
    model: ServedModel
    device: Accelerator
    engine: str
    plan: Plan
    concurrency: int
    input_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float
    repeats: int = 1
    decode_plan: Plan | None = None
    prefill_workers: int = 1
    decode_workers: int = 1
    origin: str = ""

    @property
    def far(self) -> bool:
        """Measured with another client than InferenceX's, which is beside the engine."""
        return not self.origin.startswith("inferencex")

    @property
    def case(self) -> str:
        cut = f"tp{self.plan.tensor}" + (
            f" dp{self.plan.attention_replicas}" if self.plan.attention_replicas > 1 else ""
        )
        if self.decode_plan:
            other = self.decode_plan
            decodes = f"{self.decode_workers} x tp{other.tensor} dp{other.attention_replicas}"
            cut = f"{self.prefill_workers} x {cut} + {decodes}"
        lengths = f"{self.input_tokens / LENGTHS:.0f}/{self.output_tokens / LENGTHS:.0f}"
        where = f"{self.name}, {self.device.name}, {self.engine}, {self.plan.dtype}"
        return f"{where}, {cut}, {lengths}, {self.concurrency} at once"


def _whole(row: dict[str, str], name: str, default: int = 1) -> int:
    return max(1, int(float(row[name]))) if row.get(name) else default


def plan_of(row: dict[str, str], system: str, engine: str, prefix: str = "") -> Plan:
    tensor, ranks = _whole(row, prefix + "tp"), _whole(row, prefix + "attention_dp")
    expert_tensor, expert_ranks = _whole(row, prefix + "moe_tp"), _whole(row, prefix + "moe_ep")
    if expert_tensor > 1 and expert_tensor == expert_ranks and tensor * ranks == expert_tensor * expert_ranks:
        tensor, ranks = (1, expert_ranks) if ranks > 1 else (expert_tensor, 1)
    dtype = _DTYPES.get(row.get("moe_quant_mode", "") or row.get("gemm_quant_mode", ""), "bfloat16")
    kv_dtype = "fp8" if engine == "trtllm" and dtype != "bfloat16" else "bfloat16"
    return Plan(tensor, ranks, dtype, kv_dtype, _LINKS.get(system[0], 450e9))


def engine_of(name: str) -> str:
    """The engine that a table means: it may be written otherwise, or within a longer name (dynamo-trt)."""
    plain = name.lower().replace("-", "").replace("_", "")
    found = next((engine for sign, engine in _SIGNS.items() if sign in plain), None)
    if found is None:
        raise UnknownName(f"there is no engine {name!r}; there is {', '.join(ENGINES)}")
    return found


def read_settings(path: Path) -> tuple[list[Setting], list[str]]:
    """The settings of a table, repeats as one; and why some of its rows are none: one line each."""
    groups: dict[tuple[object, ...], list[Setting]] = defaultdict(list)
    refused = []
    with opened_text(path) as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                found = _setting(row)
            except (UnknownName, BadInput, ValueError) as why:
                refused.append(f"line {number}: {why}")
                continue
            key = (
                found.name,
                found.device.name,
                found.engine,
                found.plan,
                found.decode_plan,
                found.prefill_workers,
                found.decode_workers,
                found.concurrency,
                found.input_tokens,
                found.output_tokens,
                found.origin,
            )
            groups[key].append(found)
    made = []
    for same in groups.values():
        times = median(each.ttft_s for each in same), median(each.tpot_s for each in same)
        made.append(_with_times(same[0], *times, len(same)))
    return made, refused


def _with_times(one: Setting, ttft_s: float, tpot_s: float, repeats: int) -> Setting:
    return replace(one, ttft_s=ttft_s, tpot_s=tpot_s, repeats=repeats)


def _setting(row: dict[str, str]) -> Setting:
    if missing := [name for name in _NEEDED if not row.get(name)]:
        raise BadInput(f"there is no {', '.join(missing)}")
    model, device, engine = find_model(row["model"]), accelerator(row["system"]), engine_of(row["backend"])
    split = (row.get("mode") or "").startswith("disagg")
    first = "prefill_" if split else ""
    made = Setting(
        row["model"],
        model,
        device,
        engine,
        plan_of(row, row["system"], engine, first),
        _whole(row, "concurrency"),
        float(row["isl"]) * LENGTHS,
        float(row["osl"]) * LENGTHS,
        float(row["ttft_ms"]) / 1e3,
        float(row["tpot_ms"]) / 1e3,
        decode_plan=plan_of(row, row["system"], engine, "decode_") if split else None,
        prefill_workers=_whole(row, "prefill_num_workers"),
        decode_workers=_whole(row, "decode_num_workers"),
        origin=row.get("origin", ""),
    )
    made.plan.check(model)
    if made.decode_plan:
        made.decode_plan.check(model)
    return made
