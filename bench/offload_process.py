"""The processes of bench/offload.py: one contender each, so that its memory can be told from that of the others.

They are forked from a process that has the libraries, which take long to import. What is in the page cache, and mapped
by nobody, is not counted as memory of a contender.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from offload_shapes import SHAPES, Shape, empty_model, ids_of, random_model
from openshelf import offload
from openshelf.offload._calibrate import calibrate
from openshelf.offload._lifetimes import lifetimes

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


def forward(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return model(ids, use_cache=False).logits


# Running


def ours(shape: Shape, folder: Path, length: int, budget: int) -> Run:
    """From a packed file past the page cache: cold each time."""
    rates = calibrate(folder)
    inputs = {"input_ids": ids_of(shape, length), "use_cache": False}
    plan = offload.plan(empty_model(shape).eval(), inputs, budget, fabric=rates, cache=False)
    run = plan.load(folder / "checkpoint", folder=folder)
    times = plan.plan.times
    FACTS.update(predicted=times.seconds, compute=times.compute, peak=plan.peak, slowdown=rates.slowdown)
    FACTS.update(flash=rates.flash_read.bytes_per_s, moved=times.moved["flash_read"])
    return lambda: run(**inputs)


def memory(shape: Shape, folder: Path, length: int, budget: int) -> Run:
    """All weights in memory: what is computed, without transfers."""
    load_file = importlib.import_module("safetensors.torch").load_file
    model = empty_model(shape).eval()
    weights = load_file(folder / "checkpoint" / "model.safetensors")
    model.load_state_dict({name: tensor.clone() for name, tensor in weights.items()}, assign=True)
    del weights
    ids = ids_of(shape, length)
    return lambda: forward(model, ids)


def mapped(shape: Shape, folder: Path, length: int, budget: int) -> Run:
    """safetensors as it is: weights are the file's pages, read when they are touched."""
    load_file = importlib.import_module("safetensors.torch").load_file
    ids = ids_of(shape, length)

    def run() -> None:
        model = empty_model(shape).eval()
        model.load_state_dict(load_file(folder / "checkpoint" / "model.safetensors"), assign=True)
        forward(model, ids)

    return run


def accelerate_disk(shape: Shape, folder: Path, length: int, budget: int) -> Run:
    """disk_offload: a file for each weight, which is read before its module runs."""
    accelerate = importlib.import_module("accelerate")
    model = empty_model(shape).eval()
    weights = folder / "accelerate"
    if not weights.exists():
        load_file = importlib.import_module("safetensors.torch").load_file
        accelerate.utils.offload_state_dict(weights, load_file(folder / "checkpoint" / "model.safetensors"))
        os.sync()
    accelerate.disk_offload(model, weights, execution_device=torch.device("cpu"))
    ids = ids_of(shape, length)
    return lambda: forward(model, ids)


def accelerate_safetensors(shape: Shape, folder: Path, length: int, budget: int) -> Run:
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
    ids = ids_of(shape, length)
    return lambda: forward(model, ids)


# Training


def train(shape: Shape, folder: Path, length: int, budget: int) -> Run:
    """As torch does it, AdamW, everything in memory; gradients are given back after each step."""
    model = random_model(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = ids_of(shape, length)

    def run() -> None:
        optimizer.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()

    return run


def train_ours(shape: Shape, folder: Path, length: int, budget: int) -> Run:
    rates = calibrate(folder)
    model = random_model(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = ids_of(shape, length)
    inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
    limit = 20.0 if shape.nbytes > 1 << 28 else 3.0
    plan = offload.plan(model, inputs, budget, optimizer=optimizer, fabric=rates, time_limit=limit, cache=False)
    run = plan.load(model, folder=folder)
    del model, optimizer
    times = plan.plan.times
    known = lifetimes(plan.captured.program)
    FACTS.update(predicted=times.seconds, compute=times.compute, peak=plan.peak, slowdown=rates.slowdown)
    FACTS.update(live_peak=known.live_peak, moved=times.moved, flash=rates.flash_read.bytes_per_s)
    FACTS.update(flash_write=rates.flash_write.bytes_per_s, how=plan.plan.how)
    return lambda: run(**inputs)


KINDS: dict[str, Callable[[Shape, Path, int, int], Run]] = {
    "ours": ours,
    "ours_small": ours,
    "memory": memory,
    "mapped": mapped,
    "accelerate_disk": accelerate_disk,
    "accelerate_safetensors": accelerate_safetensors,
    "train": train,
    "train_ours": train_ours,
}
COLD = ("mapped", "accelerate_disk", "accelerate_safetensors")  # what reads through the page cache


def serve(kind: str, shape: str, folder: Path, length: int, budget: int, asked: Connection) -> None:
    """In the process. "run": seconds of one run, from cold flash; "peak": most resident bytes since the model was
    loaded, beyond those of the libraries alone; "facts": what the contender says of itself."""
    torch.set_num_threads(2)
    torch.manual_seed(1)
    warm = train_ours if KINDS[kind] in (ours, train_ours) else train
    warm(SHAPES["warm"], folder, 8, 1 << 28)()  # what libraries take once
    FACTS.clear()
    settle()
    before = resident("VmRSS")
    run = KINDS[kind](SHAPES[shape], folder, length, budget)
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


class Contender:
    """One process."""

    def __init__(self, kind: str, shape: str, folder: Path, length: int, budget: int = 0) -> None:
        server = multiprocessing.get_context("forkserver")
        here = str(Path(__file__).parent)
        if here not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # where the server finds what to preload
            os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        server.set_forkserver_preload([__name__])
        self._asks, asked = server.Pipe()
        self._process = server.Process(target=serve, args=(kind, shape, folder, length, budget, asked), daemon=True)
        self._process.start()
        asked.close()
        self._asks.recv()

    def run(self) -> float:
        return float(self._ask("run"))

    def peak(self) -> int:
        return int(self._ask("peak"))

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("facts")
        return found

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself, and said why
            self._asks.send("end")
        self._process.join()

    def _ask(self, question: str) -> Any:
        self._asks.send(question)
        return self._asks.recv()
