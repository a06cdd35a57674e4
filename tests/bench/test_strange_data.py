"""Measured rows that nobody has seen: other machines, models, dtypes, engines' names, orders of columns, holes.

The figures mean nothing here. Nothing may raise, and what cannot be judged is counted.
"""

from __future__ import annotations

import csv
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
Lines = list[dict[str, Any]]


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.syspath_prepend(str(BENCH))
    for name in [each for each in sys.modules if each.partition(".")[0] in ("work", "kit")]:
        monkeypatch.delitem(sys.modules, name)
    for folder in ("ops", "training", "serving"):
        (tmp_path / folder).mkdir()
    return tmp_path


def write(path: Path, lines: Lines) -> None:
    """With columns in no order, and one that nobody asked for."""
    names = [*lines[0], "remark"]
    random.Random(1).shuffle(names)
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, names, restval="")
        out.writeheader()
        out.writerows({**line, "remark": "x, y"} for line in lines)


def test_operators_of_unknown_machines_and_dtypes_are_all_judged(data: Path) -> None:
    from work import operators

    sizes = list(itertools.product((16, 256), (512, 1024, 2048, 4096, 5120), (1024, 4096)))
    lines: Lines = [
        {"system": system, "vllm": "9", "dtype": dtype, "m": m, "n": n, "k": k, "us": 5 + 2 * m * n * k / 3e8}
        for system, dtype in (("quantum_x1", "int3_wo"), ("mi355x", "fp8"))
        for m, n, k in sizes
    ]
    lines += [{**lines[0], "system": "mi355x", "dtype": "fp9", "n": 640}]  # too few to fit
    write(data / "ops" / "gemm.csv", lines)
    rows = {row.id + row.case: row for row in operators.rows(data, quick=False)}
    judged = [row for row in rows.values() if row.id == "work.gemm.machine"]
    assert sum(int(row.note.split()[0]) for row in judged) == len(lines)
    assert rows["work.moeshapes left out"].note == "no data here"


def steps() -> Iterator[dict[str, Any]]:
    for hidden, dp, tp in itertools.product((1024, 1536, 2048), (1, 2), (1, 2, 4)):
        yield {
            "gpus": dp * tp, "global_batch": 16, "micro_batch": 1, "hidden": hidden, "heads": 16, "layers": 12,
            "seq": 1024, "tp": tp, "dp": dp, "pp": 1, "iteration_ms": 300 * (hidden / 1024) ** 2 / (dp * tp),
        }  # fmt: skip


def test_training_steps_of_unknown_systems_are_judged_or_counted(data: Path) -> None:
    from work import training

    write(data / "training" / "vtrain_single_node.csv", list(steps()))
    known = {
        "round": "v7.0", "submitter": "a", "benchmark": "llama2_70b_lora", "accelerators": 8, "per_node": 8,
        "global_batch": 8, "tp": 1, "pp": 1, "cp": 1, "interleave": "", "micro_batch": 1,
        "precision_of_config": "fp8", "step_s": 1.5,
    }  # fmt: skip
    found = [("one", "NVIDIA B200"), ("two", "NVIDIA H200"), ("three", "NVIDIA GB300"), ("four", "Quantum X1")]
    write(
        data / "training" / "mlperf_training.csv",
        [{**known, "system": system, "accelerator": name} for system, name in found],
    )
    rows = {row.id: row for row in training.rows(data, quick=True)}
    assert rows["work.vtrain1"].note.startswith("18 rows")
    assert rows["work.mlperf"].note.startswith("3 rows")
    assert "1 rows left out, of unknown accelerator Quantum X1" in rows["work.mlperf"].note
    assert rows["work.vtrain"].note == rows["work.megatron"].note == "no data here"


def test_steps_of_one_shape_alone_are_judged_by_constants_that_they_did_not_make(data: Path) -> None:
    from work import training

    write(data / "training" / "vtrain_single_node.csv", [each for each in steps() if each["hidden"] == 1536])
    rows = {row.id: row for row in training.rows(data, quick=True)}
    assert rows["work.vtrain1"].note.startswith("6 rows")


def served(**given: Any) -> dict[str, Any]:
    return {
        "origin": "elsewhere", "model": "Qwen/Qwen3-32B", "system": "h100_sxm", "backend": "vllm", "mode": "agg",
        "isl": 1024, "osl": 128, "gemm_quant_mode": "fp8", "moe_quant_mode": "", "tp": 2, "attention_dp": 1,
        "moe_tp": 1, "moe_ep": 1, "concurrency": 4, "ttft_ms": 90, "tpot_ms": 11,
    } | given  # fmt: skip


@pytest.mark.parametrize("models", [("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct"), ("Qwen/Qwen3-32B",)])
def test_serving_by_names_of_others_is_answered_or_counted(data: Path, models: tuple[str, ...]) -> None:
    from work import serving

    engines = ("vLLM", "SGLang", "TensorRT-LLM", "tensorrt_llm", "dynamo-trt", "vllm_v1")
    lines = [served(model=model, backend=engine) for model in models for engine in engines]
    lines += [served(system="mi300x", concurrency=2), served(system="b300", concurrency=8)]
    strange = [{"backend": "lmdeploy"}, {"ttft_ms": ""}, {"model": "nobody/new-7b"}, {"isl": "long"}]
    write(data / "serving" / "e2e_silicon.csv", lines + [served(**each) for each in strange])
    rows = {row.id: row for row in serving.rows(data, quick=True)}
    answered = rows["work.e2e_answered"].value
    assert answered == pytest.approx(100 * len(lines) / (len(lines) + len(strange)))
    assert (rows["work.e2e_tpot"].value or -1) >= 0


def test_a_log_without_its_engine_is_named(data: Path) -> None:
    from work import serving_logs

    (data / "vllm_requests_quantum_llama.jsonl").write_text("{}\n")
    rows = list(serving_logs.rows(data, quick=True))
    assert [row.case for row in rows if row.note.startswith("no folder")] == ["quantum_llama"]
