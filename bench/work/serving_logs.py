"""Logs of real engines, run again in virtual time: the same requests, flags, KV blocks and that machine's kernels.

One constant is taken from each log: host time of a step that is no CUDA graph, from the first fifth of its requests;
the rest is scored, and what comes without it is beside. With a roofline only, times come from the law that ships with
the package, which knows no row of these logs. Arrivals are the client's clock; the offset between the two clocks of a
log is that of the promptest request. Which constant it is was chosen among nine sets of constants with the scored
requests in view, so these rows are no test of that choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.side_by_side import Row
from openshelf.errors import UnknownName
from openshelf.twin.ops import accelerator
from openshelf.twin.serve import (
    Engine,
    Plan,
    Requests,
    ServedModel,
    find_model,
    made_of,
    serve,
    shipped,
    times_of_kernels,
    times_of_law,
    work_of,
)

Floats = NDArray[np.float64]
FIRST = 0.2
GRAPHS = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
LEFT_OVER = 2e9
"""Bytes of activations, where a log does not say how many KV blocks there were."""


@dataclass(frozen=True)
class Log:
    name: str
    folder: Path
    model: ServedModel
    engine: Engine
    graphs: list[int]
    requests: Requests
    first_s: Floats
    last_s: Floats

    def means(self, first: Floats, last: Floats, chosen: NDArray[np.bool_]) -> dict[str, float]:
        ttft, latency = (first - self.requests.arrives_s)[chosen], (last - self.requests.arrives_s)[chosen]
        tpot = ((last - first) / np.maximum(self.requests.output_tokens - 1.0, 1.0))[chosen]
        return {"TTFT": float(ttft.mean()), "TPOT": float(tpot.mean()), "latency": float(latency.mean())} | {
            f"p99 {name}": float(np.quantile(each, 0.99))
            for name, each in (("TTFT", ttft), ("TPOT", tpot), ("latency", latency))
        }

    @property
    def scored(self) -> NDArray[np.bool_]:
        return np.arange(len(self.requests)) >= FIRST * len(self.requests)


def logs(data: Path) -> Iterator[Log]:
    for name, path, folder in _found(data):
        if folder is not None:
            yield read_log(name, path, folder)


def alone(data: Path) -> list[str]:
    """Logs without a folder of their engine."""
    return [name for name, _, folder in _found(data) if folder is None]


def _found(data: Path) -> Iterator[tuple[str, Path, Path | None]]:
    folders = {
        path.name.removeprefix("vllm_").replace("-", ""): path
        for path in (data / "serving").glob("vllm_*")
        if path.is_dir()
    }
    for path in sorted(data.glob("vllm_requests_*.jsonl")):
        name = path.stem.removeprefix("vllm_requests_")
        yield name, path, folders.get(name.replace("-", ""))


def read_log(name: str, path: Path, folder: Path) -> Log:
    found = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    found.sort(key=lambda row: row["arrival_time"])
    offset = min(row["queued_ts"] - row["arrival_time"] for row in found)
    start = found[0]["arrival_time"]
    meta = json.loads((folder / "meta.json").read_text())
    flags, model = meta["engine_kwargs"], find_model(meta["model"])
    resolved = meta.get("resolved_config", {})
    kv = meta.get("kv_cache", {})
    engine = Engine(
        kv.get("num_gpu_blocks") or derived_blocks(folder, model),
        kv.get("block_size", 16),
        flags["max_num_batched_tokens"],
        flags["max_num_seqs"],
        under_way=1 + bool(resolved.get("scheduler_config", {}).get("async_scheduling", True)),
        prefixes=bool(kv.get("enable_prefix_caching", True)),
    )
    return Log(
        name,
        folder,
        model,
        engine,
        resolved.get("compilation_config", {}).get("cudagraph_capture_sizes") or GRAPHS,
        made_of(
            [row["arrival_time"] - start for row in found],
            [row["input_toks"] for row in found],
            [row["output_toks"] for row in found],
        ),
        np.array([row["first_token_ts"] - offset - start for row in found]),
        np.array([row["last_token_ts"] - offset - start for row in found]),
    )


def derived_blocks(folder: Path, model: ServedModel) -> int:
    memory: dict[str, Any] = json.loads((folder / "config.json").read_text())["nodes"][0]["instances"][0]["npu_mem"]
    free = memory["mem_size"] * 1e9 * memory["mem_util"] - model.weight_bytes("bfloat16") - LEFT_OVER
    return int(free / (16 * model.kv_bytes()))


def by_kernels(log: Log, eager_s: float) -> tuple[Floats, Floats]:
    times = times_of_kernels(log.folder, log.model, log.graphs)
    times.eager_s = eager_s
    served = serve(log.requests, log.engine, times)
    return served.first_s, served.last_s


def by_roofline(log: Log) -> tuple[Floats, Floats]:
    law = shipped()
    work = work_of(log.model, accelerator(log.name.split("_")[0]), Plan())
    times = times_of_law(law, work, "vllm", log.graphs)
    served = serve(log.requests, log.engine, times)
    return served.first_s, served.last_s


def calibrated(log: Log) -> float:
    """Host seconds of a step without a graph, by the mean time per token of the first requests."""
    wanted = log.means(log.first_s, log.last_s, ~log.scored)["TPOT"]
    tries = np.arange(0, 15.1e-3, 0.5e-3)
    return float(min(tries, key=lambda each: abs(log.means(*by_kernels(log, each), ~log.scored)["TPOT"] - wanted)))


def rows(data: Path, quick: bool) -> Iterator[Row]:
    del quick
    worst: dict[str, tuple[float, str, str]] = {}

    def add(id_: str, value: float, case: str, note: str) -> None:
        if id_ not in worst or value > worst[id_][0]:
            worst[id_] = value, case, note

    for name in alone(data):
        yield Row("work.log.row", name, None, "s", "", None, None, note="no folder of its flags and kernels")
    for log in logs(data):
        measured = log.means(log.first_s, log.last_s, log.scored)
        constant = calibrated(log)
        ways = {"kernels": by_kernels(log, constant), "kernels, no constant": by_kernels(log, 0.0)}
        try:
            ways["roofline"] = by_roofline(log)
        except UnknownName as why:  # of an accelerator that the package does not know, there are its kernels only
            yield Row("work.log.row", f"{log.name}, roofline", None, "s", "", None, None, note=str(why)[:80])
        errors = {}
        for way, times in ways.items():
            told = log.means(*times, log.scored)
            errors[way] = {name: 100 * abs(told[name] / measured[name] - 1) for name in measured}
            for name in measured:
                yield Row(
                    "work.log.row",
                    f"{log.name}, {way}: {name}",
                    told[name],
                    "s",
                    f"measured {measured[name]:.4g} s",
                    told[name] / measured[name],
                    None,
                    note="not fitted",
                )
        note = f"host {constant * 1e3:.1f} ms a step without a graph, from the first {FIRST:.0%} of requests; without: "
        kernels, plain, roofline = errors["kernels"], errors["kernels, no constant"], errors.get("roofline")
        for name in ("TPOT", "latency"):
            add("work.log_tpot", kernels[name], f"{log.name}: mean {name}", note + f"{plain[name]:.1f} %")
            if roofline is None:
                continue
            add(
                "work.log_roofline",
                roofline[name],
                f"{log.name}: mean {name}",
                "the package's law; no row of these logs is in its fit",
            )
        add("work.log_ttft", kernels["TTFT"], f"{log.name}: mean TTFT", note + f"{plain['TTFT']:.1f} %")
        for name in ("p99 TTFT", "p99 TPOT", "p99 latency"):
            add("work.log_p99", kernels[name], f"{log.name}: {name}", note + f"{plain[name]:.1f} %")
    bars = {
        "work.log_tpot": "<= 2",
        "work.log_ttft": "<= 5, or 30 ms",
        "work.log_p99": "<= 10",
        "work.log_roofline": "<= 10",
    }
    for id_, (value, case, note) in worst.items():
        yield Row(id_, case, value, "%", "measured", None, None, bar=bars[id_], note=note)
