"""The two processes of bench/hosts.py: host a has the bytes and stores, host b touches them and measures.

    hosts_process.py LINE

Both speak Openshelf, and beside it a bare TCP connection over the same path: b asks with 16 bytes, a answers from its
memory. All times are seconds, taken inside b (or, for its own stores, inside a).
"""

from __future__ import annotations

import mmap
import random
import socket
import sys
import time
from typing import Any, ClassVar

import numpy as np

from openshelf import Array, Space
from openshelf.show.tour import obey, serve_bare, time_bare

UNIT = 64 << 10
PAGE = 4 << 10
LARGEST = 64 << 20
Doubles = np.ndarray[Any, np.dtype[np.float64]]


class Here:
    """What this process has open."""

    space: Space
    plain: Space
    kept: Space
    arrays: ClassVar[dict[str, Array]] = {}
    bare: socket.socket
    memory = np.zeros(LARGEST, np.uint8)


def open_space(url: str, contribute: str) -> None:
    Here.space = Space.open(url, contribute=contribute)


def close_space() -> None:
    Here.arrays.clear()
    Here.space.close()


def make(name: str, units: int) -> None:
    """Host a: one unit more than wanted, so that this many whole ones are inside wherever it lies."""
    Here.arrays[name] = Here.space.zeros(name, (units + 1) * UNIT // 8, "float64")


def drop(name: str) -> None:
    Here.arrays.pop(name, None)
    if name in Here.space:
        Here.space.delete(name)


def find(name: str) -> str | None:
    """Host b: None, or why the bytes cannot be touched here."""
    Here.arrays[name] = Here.space[name]
    try:
        Here.arrays[name].numpy()
    except PermissionError as error:
        return str(error)
    return None


def whole_units(name: str) -> Doubles:
    array = Here.arrays[name]
    first = -array.address % UNIT // 8
    count = array.nbytes // UNIT - 1
    found: Doubles = array.numpy()[first : first + count * UNIT // 8]
    return found


def in_turn(name: str, seed: int) -> list[int]:
    """One word of each unit, in an order that no look-ahead can guess."""
    words = list(range(8 * (seed % 64), whole_units(name).size, UNIT // 8))
    random.Random(seed).shuffle(words)
    return words


def store(name: str, value: float, seed: int) -> list[float]:
    """A plain store into each unit."""
    view, times, clock = whole_units(name), [], time.perf_counter
    for word in in_turn(name, seed):
        started = clock()
        view[word] = value
        times.append(clock() - started)
    return times


def load(name: str, value: float, seed: int) -> list[float]:
    """A plain load from each unit, which must find the value stored last."""
    view, times, clock = whole_units(name), [], time.perf_counter
    for word in in_turn(name, seed):
        started = clock()
        found = view[word]
        times.append(clock() - started)
        if found != value:
            raise AssertionError(f"word {word} of {name} is {found}, expected {value}: a stale unit")
    return times


def serve(ip: str) -> int:
    """Host a: the bare peer, from touched memory."""
    Here.memory[:] = 7
    return serve_bare(ip, Here.memory)


def connect(ip: str, port: int) -> None:
    Here.memory[:] = 0
    Here.bare = socket.create_connection((ip, port))


def bare(nbytes: int, chunk: int, count: int, spin_us: int) -> list[float]:
    Here.memory[nbytes - 1] = 0
    times = time_bare(Here.bare, Here.memory[:nbytes], count, chunk, spin_us)
    if Here.memory[nbytes - 1] != 7:
        raise AssertionError("the bare reply did not arrive")
    return times


def get(name: str, nbytes: int, count: int) -> list[float]:
    """Explicit gets into memory that is touched already."""
    array, times, clock = Here.arrays[name], [], time.perf_counter
    for _ in range(count):
        started = clock()
        Here.space.get(array.address, Here.memory[:nbytes]).wait()
        times.append(clock() - started)
    return times


def scattered(name: str, count: int, depth: int, seed: int) -> list[float]:
    """What a get of 4 KiB takes with `depth` of them in flight: the time of each batch by what is in it."""
    array, out = Here.arrays[name], Here.memory[: depth * PAGE].reshape(depth, PAGE)
    pages = random.Random(seed).sample(range(array.nbytes // PAGE), count)
    addresses = [array.address + page * PAGE for page in pages]
    times, clock = [], time.perf_counter
    for at in range(0, count, depth):
        started = clock()
        Here.space.get(addresses[at : at + depth], out).wait()
        times.append((clock() - started) / depth)
    return times


def open_others(plain: str, kept: str, contribute: str) -> None:
    """Spaces whose hosts agree in etcd: one without replicas, one with two of everything."""
    Here.plain = Space.open(plain, contribute=contribute)
    Here.kept = Space.open(kept, contribute=contribute, replicas=2)


def put(kept: bool, name: str, nbytes: int, home: int | None, count: int) -> list[float]:
    """Puts of one array over the last one; where the space has no replicas, to another host."""
    space, times, clock = Here.kept if kept else Here.plain, [], time.perf_counter
    for number in range(count):
        Here.memory[:nbytes] = number + 1
        started = clock()
        space.put(name, Here.memory[:nbytes], home=home)
        times.append(clock() - started)
    return times


def first_touch(name: str, value: int) -> float:
    """When a look-up and a load have given what was put."""
    found = int(Here.kept[name].numpy()[-1])
    if found != value:
        raise AssertionError(f"{name} is {found}, expected {value}: an acknowledged put is lost")
    return time.monotonic()


def best_sum(data: Doubles) -> float:
    times = []
    for _ in range(8):
        started = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - started)
    return min(times)


def sum_shared(name: str) -> float:
    """The best of eight sums over units that are here already: prefetched, then touched once."""
    Here.arrays[name].prefetch().wait()
    view = whole_units(name)
    view.sum()
    return best_sum(view)


def sum_local(name: str) -> float:
    """The same over anonymous memory in 4 KiB pages, taken for it and given back."""
    memory = mmap.mmap(-1, whole_units(name).nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    local: Doubles = np.frombuffer(memory, np.float64)
    local[:] = 1.0
    local.sum()
    return best_sum(local)


if __name__ == "__main__":
    obey(
        sys.argv[1],
        {
            function.__name__: function
            for function in (
                open_space, close_space, make, drop, find, store, load, serve, connect, bare, get, scattered,
                sum_shared, sum_local, open_others, put, first_touch,
            )
        },
    )  # fmt: skip
