"""Measured training steps as models, plans and clusters: vTrain's, Megatron's, MLPerf's; each row with its hash."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from openshelf.twin.ops import Accelerator, accelerator, accelerators
from openshelf.workloads.train import MODELS, Cluster, Model, Plan, gpt

# A100 nodes: NVLink 3 of 300 GB/s a direction. vTrain's have four 200 Gb/s links for eight A100, Megatron's eight.
NVLINK_A100, VTRAIN_NET, SELENE_NET, NDR = 300e9, 12.5e9, 25e9, 50e9
VTRAIN = ("gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp", "pp")
BENCHMARKS: dict[str, Model] = {
    "gpt3": MODELS["gpt3-175b"],
    "llama31_405b": MODELS["llama3.1-405b"],
    "llama31_8b": MODELS["llama3.1-8b"],
    "llama2_70b_lora": replace(MODELS["llama2-70b"], seq=8192, lora=True),
}


@dataclass(frozen=True)
class Measured:
    """A row: what it is a step of, its seconds, its hash, what it is left out with, and its software's round."""

    model: Model
    plan: Plan
    cluster: Cluster
    seconds: float
    hash: str
    group: str
    name: str
    round: str = ""

    @property
    def case(self) -> tuple[Model, Plan, Cluster, float]:
        return self.model, self.plan, self.cluster, self.seconds


def _hash(*words: object) -> str:
    return blake2b("|".join(map(str, words)).encode(), digest_size=8).hexdigest()


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def vtrain(data: Path, name: str) -> list[Measured]:
    """Steps of vTrain; a group is a shape of model."""
    made = []
    for line in _lines(data / "training" / f"vtrain_{name}.csv"):
        row = {key: int(line[key]) for key in VTRAIN}
        shape = f"{row['hidden']}x{row['layers']}x{row['heads']}x{row['seq']}"
        plan = Plan(
            dp=row["dp"], tp=row["tp"], pp=row["pp"], micro_batch=row["micro_batch"], global_batch=row["global_batch"],
            recompute="full", flash=False,
        )  # fmt: skip
        cluster = Cluster(accelerator("a100_sxm"), row["gpus"], 8, NVLINK_A100, VTRAIN_NET)
        model = gpt(shape, row["hidden"], row["layers"], row["heads"], row["seq"])
        key = _hash("vtrain", *(line[column] for column in sorted(VTRAIN)))
        made.append(Measured(model, plan, cluster, float(line["iteration_ms"]) / 1e3, key, shape, name))
    return made


def megatron(data: Path) -> list[Measured]:
    """The batches of the published tables, with full and with selective recomputation."""
    path = data / "megatron_training.json"
    made = []
    for run in json.loads(path.read_text())["runs"] if path.exists() else []:
        chunks = run.get("interleave", 1)
        base = Plan(
            tp=run["tp"], pp=run["pp"], micro_batch=run["micro_batch"], global_batch=run["batch"], interleave=chunks,
            dp=run["gpus"] // (run["tp"] * run["pp"]), schedule="interleaved" if chunks > 1 else "1f1b", flash=False,
        )  # fmt: skip
        model = gpt(run["model"], run["hidden"], run["blocks"], run["heads"], run["seq"])
        cluster = Cluster(accelerator("a100_sxm"), run["gpus"], 8, NVLINK_A100, SELENE_NET)
        plans = {
            "recompute_full": replace(base, recompute="full"),
            "recompute_selective_seqpar": replace(base, recompute="selective", sequence_parallel=True),
        }
        for key, plan in plans.items():
            if key in run:
                name = f"{run['model']}, {key.replace('_', ' ')}"
                made.append(Measured(model, plan, cluster, run[key], _hash("megatron", name), run["model"], name))
    return made


def mlperf(data: Path) -> Iterator[Measured]:
    """Steps of MLPerf with a measured step_s and an accelerator that is known; a group is a system."""
    for line in _lines(data / "training" / "mlperf_training.csv"):
        device = _device(line["accelerator"])
        if not line["step_s"] or device is None or mlperf_unknown(line):
            continue
        count = int(line["accelerators"])
        node = 72 if device.name.startswith("gb") else int(line["per_node"])
        fast = 900e9 if "nvfp4" in device.flop_per_s else 450e9
        name = f"{line['round']} {line['system']}, {line['benchmark']}, {count} x {device.name}"
        yield Measured(
            BENCHMARKS[line["benchmark"]], _mlperf_plan(line, count), Cluster(device, count, node, fast, NDR),
            float(line["step_s"]), _hash("mlperf", name, line["submitter"]), line["system"], name, line["round"],
        )  # fmt: skip


def mlperf_unknown(line: dict[str, str]) -> str:
    """Why a row that has step_s is none to predict; "" where it is."""
    if _device(line["accelerator"]) is None:
        return f"accelerator {line['accelerator']}"
    return "" if line["benchmark"] in BENCHMARKS else f"benchmark {line['benchmark']}"


def mlperf_left_out(data: Path) -> str:
    """How many rows with step_s are of no known accelerator or benchmark, and of which."""
    lines = [line for line in _lines(data / "training" / "mlperf_training.csv") if line["step_s"]]
    why = [each for line in lines if (each := mlperf_unknown(line))]
    return f"; {len(why)} rows left out, of unknown {', '.join(sorted(set(why)))}" if why else ""


def _mlperf_plan(line: dict[str, str], count: int) -> Plan:
    """The submission's; where its config is not known, sequences go to data parallelism, and what is left to tensor
    parallelism, up to 4, and context parallelism."""

    def number(name: str, other: int = 1) -> int:
        return int(float(line[name])) if line[name] not in ("", "null") else other

    batch = int(line["global_batch"])
    if line["tp"]:
        tp, pp, cp = number("tp"), number("pp"), number("cp")
        dp = count // (tp * pp * cp)
    else:
        pp, dp = 1, min(count, batch)
        tp = min(count // dp, 4)
        cp = count // (dp * tp)
    micro = number("micro_batch")
    micro = micro if batch % (dp * micro) == 0 else 1
    chunks = max(1, number("interleave")) if pp > 1 else 1
    return Plan(
        dp=dp, tp=tp, pp=pp, cp=cp, micro_batch=micro, global_batch=batch, sequence_parallel=tp > 1, zero=1,
        interleave=chunks, schedule="interleaved" if chunks > 1 else "1f1b", overlap=True,
        dtype="nvfp4" if "fp4" in line["precision_of_config"] else "fp8",
    )  # fmt: skip


def _device(text: str) -> Accelerator | None:
    """The accelerator whose name is in a text; the longest, for B200 is in GB200."""
    names = {name: each for each in accelerators().values() for name in (each.name, *each.aliases)}
    found = [name for name in names if name in text.lower()]
    return names[max(found, key=len)] if found else None
