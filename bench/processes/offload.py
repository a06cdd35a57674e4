"""The processes of bench/offload.py: one contender each, so that its memory can be told from that of the others.

What is in the page cache, and mapped by nobody, is not counted as memory of a contender.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from openshelf import offload
from openshelf.offload import calibrate, lifetimes
from processes.offload_shapes import SHAPES, Shape, empty_model, ids_of, random_model

for late in ("torch._dynamo", "transformers.models.llama.modeling_llama", "highspy"):
    importlib.import_module(late)  # before processes are forked: each would import it again
assert callable(offload.plan)  # so is what is behind this name

Run = Callable[[], object]
FACTS: dict[str, Any] = {}


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def forget(folder: Path) -> None:
    """Takes a folder's files out of the page cache; pages that are mapped would stay."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def settle() -> None:
    """Gives back what is no longer used, of loading and of trying."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def timed(work: Run) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def search_s(shape: Shape) -> float:
    """How long to look for a better plan: quick runs have small shapes."""
    return 10.0 if shape.nbytes > 1 << 30 else 1.0


def forward(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return model(ids, use_cache=False).logits


# Running


def ours(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """From a packed file past the page cache: cold each time."""
    rates = calibrate(folder)
    inputs = {"input_ids": ids, "use_cache": False}
    plan = offload.plan(
        empty_model(shape).eval(), inputs, budget, stay=False, fabric=rates, time_limit=search_s(shape), cache=False
    )
    run = plan.load(folder / "checkpoint", folder=folder)
    times = plan.plan.times
    FACTS.update(predicted=times.seconds, compute=times.compute, peak=plan.peak, slowdown=rates.slowdown)
    FACTS.update(flash=rates.flash_read.bytes_per_s, moved=times.moved["flash_read"])
    return lambda: run(**inputs)


def memory(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """All weights in memory: what is computed, without transfers."""
    load_file = importlib.import_module("safetensors.torch").load_file
    model = empty_model(shape).eval()
    weights = load_file(folder / "checkpoint" / "model.safetensors")
    model.load_state_dict({name: tensor.clone() for name, tensor in weights.items()}, assign=True)
    del weights
    return lambda: forward(model, ids)


def mapped(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """safetensors as it is: weights are the file's pages, read when they are touched."""
    load_file = importlib.import_module("safetensors.torch").load_file

    def run() -> None:
        model = empty_model(shape).eval()
        model.load_state_dict(load_file(folder / "checkpoint" / "model.safetensors"), assign=True)
        forward(model, ids)

    return run


def accelerate_disk(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """disk_offload: a file for each weight, which is read before its module runs."""
    accelerate = importlib.import_module("accelerate")
    model = empty_model(shape).eval()
    weights = folder / "accelerate"
    if not weights.exists():
        load_file = importlib.import_module("safetensors.torch").load_file
        accelerate.utils.offload_state_dict(weights, load_file(folder / "checkpoint" / "model.safetensors"))
        os.sync()
    accelerate.disk_offload(model, weights, execution_device=torch.device("cpu"))
    return lambda: forward(model, ids)


def accelerate_safetensors(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """The checkpoint where it is, read tensor by tensor before a module runs."""
    accelerate = importlib.import_module("accelerate")
    names = [name for name, _ in empty_model(shape).named_parameters()]
    file = str(folder / "checkpoint" / "model.safetensors")
    index = {name: {"safetensors_file": file, "weight_name": name, "dtype": "float32"} for name in names}
    model = empty_model(shape).eval()
    loader = accelerate.utils.OffloadedWeightsLoader(save_folder=None, index=index, state_dict={})
    accelerate.hooks.attach_align_device_hook(
        model, execution_device=torch.device("cpu"), offload=True, weights_map=loader
    )
    return lambda: forward(model, ids)


def deepspeed(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    made: Run = importlib.import_module("peers.deepspeed").running(shape, folder, ids, budget)
    return made


# Training


def train(shape: Shape, folder: Path, ids: Any, budget: int, prepare: Callable[[Any], object] | None = None) -> Run:
    """As torch does it, AdamW, everything in memory; gradients are given back after each step."""
    model = random_model(shape).train()
    if prepare is not None:
        prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def run() -> None:
        optimizer.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()

    return run


def train_checkpointed(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """As train, but of each layer only the input is kept: the rest is computed again in the backward pass."""
    return train(shape, folder, ids, budget, lambda model: model.gradient_checkpointing_enable())


def train_min_cut(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    """As train, captured by torch.compile, whose partitioner keeps so many percent of the bytes that the backward pass
    wants, and computes the rest again."""
    config: Any = importlib.import_module("torch._functorch.config")
    config.activation_memory_budget = budget / 100
    return train(shape, folder, ids, budget, lambda model: model.compile(backend="aot_eager_decomp_partition"))


def train_deepspeed(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    made: Run = importlib.import_module("peers.deepspeed").training(shape, folder, ids, budget)
    return made


def train_ours(shape: Shape, folder: Path, ids: Any, budget: int) -> Run:
    rates = calibrate(folder)
    model = random_model(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
    plan = offload.plan(
        model, inputs, budget, optimizer=optimizer, fabric=rates, time_limit=search_s(shape), cache=False
    )
    run = plan.load(model, folder=folder)
    del model, optimizer
    times = plan.plan.times
    known = lifetimes(plan.captured.program)
    FACTS.update(predicted=times.seconds, compute=times.compute, peak=plan.peak, slowdown=rates.slowdown)
    FACTS.update(live_peak=known.live_peak, moved=times.moved, flash=rates.flash_read.bytes_per_s)
    FACTS.update(flash_write=rates.flash_write.bytes_per_s, how=plan.plan.how)
    return lambda: run(**inputs)


KINDS: dict[str, Callable[[Shape, Path, Any, int], Run]] = {
    "ours": ours,
    "ours_small": ours,
    "memory": memory,
    "mapped": mapped,
    "accelerate_disk": accelerate_disk,
    "accelerate_safetensors": accelerate_safetensors,
    "deepspeed": deepspeed,
    "train": train,
    "train_checkpointed": train_checkpointed,
    "train_min_cut": train_min_cut,
    "train_deepspeed": train_deepspeed,
    "train_ours": train_ours,
}
COLD = ("mapped", "accelerate_disk", "accelerate_safetensors")  # what reads through the page cache


def warm_up(with_ours: bool, folder: Path) -> None:
    """Takes what libraries take once."""
    shape = SHAPES["warm"]
    ids = ids_of(shape, 1, 8)
    train(shape, folder, ids, 0)()
    if with_ours:
        lane = offload.Lane(1e9)
        model = random_model(shape).train()
        optimizer, inputs = torch.optim.AdamW(model.parameters()), {"input_ids": ids, "labels": ids, "use_cache": False}
        rates = offload.Rates(lane, lane, lane, lane)
        plan = offload.plan(model, inputs, 1 << 20, optimizer=optimizer, fabric=rates, time_limit=0.2, cache=False)
        with plan.load(model, folder=folder) as run:
            run(**inputs)


def serve(kind: str, shape: str, folder: Path, count: int, length: int, budget: int, asked: Connection) -> None:
    """In the process. "run": seconds of one run, from cold flash; "peak": most resident bytes since the model was
    loaded, beyond those of the libraries alone; "facts": what the contender says of itself."""
    torch.set_num_threads(2)
    torch.manual_seed(1)
    warm_up(KINDS[kind] in (ours, train_ours), folder)
    settle()
    before = resident("VmRSS")
    run = KINDS[kind](SHAPES[shape], folder, ids_of(SHAPES[shape], count, length), budget)
    settle()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    asked.send("ready")
    while (question := asked.recv()) != "end":
        if question == "run":
            if kind in COLD:
                forget(folder)
            asked.send(timed(run))
        else:
            asked.send(resident("VmHWM") - before if question == "peak" else FACTS)
