"""Chapter four: a space larger than memory. Layers come from flash while others compute; nobody minds a kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.status import Status
from rich.table import Table

from openshelf.show.tiers import tier_bar
from openshelf.show.times import format_time
from openshelf.show.tour.power_cut import disk_directory, power_cut
from openshelf.show.tour.workers import result_of
from openshelf.space import Array, Space, format_size, tiers_of

DRAM, FLASH = "128MiB", "512MiB"
LAYERS, SIDE, BATCH = 64, 1024, 64  # a layer: 4 MiB of float32; all: 256 MiB
USED, ROUNDS = 16, 5  # layers of the network that is run: 64 MiB; the best of so many runs
_MARKS = {"dram": "█", "mixed": "▒", "flash": "░"}

Floats = np.ndarray[Any, np.dtype[np.float32]]


def _sum(part: Array) -> int:
    """Reads every byte."""
    return int(part.numpy("uint64").sum(dtype=np.uint64))


def _write(layers: Array) -> tuple[list[int], float]:
    """Fills all layers; what their bytes add up to, and seconds spent storing."""
    base: Floats = np.random.default_rng(4).standard_normal((SIDE, SIDE), np.float32) / np.float32(32)
    sums, spent = [], 0.0
    for number in range(LAYERS):
        fresh = base * np.float32(1 + number / LAYERS)
        sums.append(int(fresh.view(np.uint64).sum(dtype=np.uint64)))
        started = time.perf_counter()
        layers[number].numpy()[:] = fresh
        spent += time.perf_counter() - started
    return sums, spent


def _run(space: Space, layers: Array, ahead: int) -> tuple[float, float]:
    """A small network through the first layers, which asks for a layer so many before it is used: seconds of all of
    it, and of those waited, by touches or for what was asked for."""
    state: Floats = np.ones((BATCH, SIDE), np.float32)
    before, waited = space.describe()["tiers"]["exposed_wait_s"], 0.0
    started = time.perf_counter()
    coming = [layers[number].prefetch() for number in range(ahead)]
    for number in range(USED):
        if ahead and number + ahead < USED:
            coming.append(layers[number + ahead].prefetch())
        if ahead:
            asked = time.perf_counter()
            coming[number].wait()
            waited += time.perf_counter() - asked
        state = np.tanh(state @ layers[number].numpy())
    spent = time.perf_counter() - started
    return spent, waited + space.describe()["tiers"]["exposed_wait_s"] - before


def _network(name: str) -> dict[str, tuple[float, float]]:
    """The same run: all in dram; from flash, by touching; from flash, with prefetches."""
    runs: dict[str, list[tuple[float, float]]] = {}
    with Space.open(name) as space:
        layers = space["layers"]
        network = layers[:USED]
        for _ in range(ROUNDS):  # in turn: what else the machine does befalls all alike
            for what, ahead in (("in dram", 0), ("on flash, touched", 0), ("on flash, prefetched", 4)):
                (network.demote() if "flash" in what else network.prefetch()).wait()
                runs.setdefault(what, []).append(_run(space, layers, ahead))
    return {what: min(those) for what, those in runs.items()}


def _kill_keeper(space: Space, layers: Array, sums: list[int]) -> dict[str, Any]:
    """Reads what is on flash, the keeper being killed before; the next touch finds another one."""
    layers[:USED].demote().wait()
    pid = int(space.describe()["tiers"]["keeper"])
    os.kill(pid, signal.SIGKILL)
    started = time.perf_counter()
    equal = [_sum(layers[number]) for number in range(USED)] == sums[:USED]
    spent = time.perf_counter() - started
    return {"equal": equal, "read_s": spent, "keepers": [pid, int(space.describe()["tiers"]["keeper"])]}


def _first_touch(layers: Array) -> float:
    """Seconds of one load from flash."""
    layers[USED].demote().wait()
    started = time.perf_counter()
    layers[USED].numpy()[0, 0].item()
    return time.perf_counter() - started


def _larger_than_memory(name: str, directory: Path, status: Status) -> dict[str, Any]:
    with Space.create(name, dram=DRAM, flash=f"{directory / 'shelf'}:{FLASH}") as space:
        found: dict[str, Any] = {"faults": space.describe()["tiers"]["faults_how"]}
        with space.new("layers", (LAYERS, SIDE, SIDE), "float32") as layers:
            sums, found["write_s"] = _write(layers)
        found["bytes"], found["dram"] = layers.nbytes, space.describe()["tiers"]["dram_budget"]
        status.update("reading it back")
        started = time.perf_counter()
        found["equal"] = [_sum(layers[number]) for number in range(LAYERS)] == sums
        found["read_s"] = time.perf_counter() - started
        status.update("running a network whose layers are on flash")
        found["first_touch_s"] = _first_touch(layers)
        found["network"] = result_of(_network, name)
        status.update("streaming past a pin")
        with layers[0].pin():
            for number in range(USED, LAYERS):
                _sum(layers[number])
            found["layers"] = [layers[number].tier for number in range(LAYERS)]
        found["tiers"] = space.describe()["tiers"]
        status.update("killing the keeper")
        found["killed"] = _kill_keeper(space, layers, sums)
    return found


def tiers_chapter(console: Console) -> dict[str, Any]:
    console.rule("[bold]More than memory")
    name = f"tour-tiers-{os.getpid()}"
    with disk_directory() as directory, console.status("writing an array larger than memory") as status:
        try:
            found = _larger_than_memory(name, directory, status)
        finally:
            if name in tiers_of():
                Space.remove(name)
        status.update("cutting the power of a durable space")
        found["durable"] = power_cut(f"{name}-durable", directory)
        found["directory"] = str(directory)
    _print(console, found)
    found["tiers"] = {key: found["tiers"][key] for key in ("dram_bytes", "flash_bytes", "empty_bytes", "pinned_bytes")}
    return found


def _print(console: Console, found: dict[str, Any]) -> None:
    size, killed, durable = format_size(found["bytes"]), found["killed"], found["durable"]
    later = "gone" if durable["later_gone"] else "STILL THERE"
    console.print(
        f"An array of {size} in {format_size(found['dram'])} of dram: written in {format_time(found['write_s'])}, read "
        f"back in {format_time(found['read_s'])}, {'equal' if found['equal'] else 'NOT EQUAL'}. One load from flash: "
        f"{format_time(found['first_touch_s'])}."
    )
    table = Table(title=f"A network of {USED} layers of 4 MiB, measured now on this machine", title_justify="left")
    for column in ("its weights are", "time", "of it waited"):
        table.add_column(column, justify="left" if column.startswith("its") else "right")
    for what, (spent, waited) in found["network"].items():
        table.add_row(what, format_time(spent), format_time(waited))
    console.print(table)
    console.print("All layers, the first one pinned while the others were read (█ in dram, ▒ partly, ░ on flash):")
    console.print("".join(_MARKS[tier] for tier in found["layers"]))
    console.print("All that the space can hold (█ in dram, ▓ on flash, ░ never written):")
    console.print(tier_bar(found["tiers"], LAYERS))
    console.print(
        f"The keeper was killed (-9): the reader went on with the next one after {format_time(killed['read_s'])}, its "
        f"bytes {'equal' if killed['equal'] else 'NOT EQUAL'}."
    )
    console.print(
        f"A durable space flushed {format_size(durable['bytes'])} in {format_time(durable['flush_s'])}. Everybody was "
        f"killed and its memory deleted: restored in {format_time(durable['restore_s'])}, what was flushed is "
        f"{'equal' if durable['equal'] else 'NOT EQUAL'}, what was put later is {later}."
    )
