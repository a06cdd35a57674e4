"""How many sectors a second a disk reads at random: O_DIRECT, many at once, by Linux's asynchronous reads.

Orders are filled by numpy and given by a few system calls, so that the disk is what is measured, not Python.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np

SECTOR = 4096
_SETUP, _DESTROY, _EVENTS, _SUBMIT = (206, 207, 208, 209) if os.uname().machine == "x86_64" else (0, 1, 4, 2)
_ORDER = np.dtype(
    [("data", "<u8"), ("key", "<u4"), ("flags", "<u4"), ("code", "<u2"), ("priority", "<i2"), ("file", "<u4"),
     ("buffer", "<u8"), ("nbytes", "<u8"), ("offset", "<i8"), ("rest", "<u8", 2)]
)  # fmt: skip
_EVENT = np.dtype([("data", "<u8"), ("order", "<u8"), ("result", "<i8"), ("more", "<i8")])


def sectors_a_second(path: Path, depth: int, seconds: float) -> float:
    """Of a file, with so many reads under way."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    queue = ctypes.c_ulong(0)
    if call(_SETUP, depth, ctypes.byref(queue)) < 0:
        raise OSError(ctypes.get_errno(), "io_setup")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, depth * SECTOR)
    first = np.frombuffer(memory, np.uint8).ctypes.data
    orders, events = np.zeros(depth, _ORDER), np.zeros(depth, _EVENT)
    orders["data"] = np.arange(depth)
    orders["file"], orders["nbytes"] = fd, SECTOR
    orders["buffer"] = first + np.arange(depth) * SECTOR
    chance, there = np.random.default_rng(1), os.fstat(fd).st_size // SECTOR
    done, under_way, free = 0, 0, np.arange(depth)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or under_way:
        if time.perf_counter() - begun < seconds:
            orders["offset"][free] = chance.integers(0, there, len(free)) * SECTOR
            pointers = (orders.ctypes.data + free * _ORDER.itemsize).astype(np.uint64)
            if call(_SUBMIT, queue, ctypes.c_long(len(free)), ctypes.c_void_p(pointers.ctypes.data)) != len(free):
                raise OSError(ctypes.get_errno(), "io_submit")
            under_way += len(free)
        least = ctypes.c_long(min(under_way, 8))
        ended = call(_EVENTS, queue, least, ctypes.c_long(depth), ctypes.c_void_p(events.ctypes.data), None)
        if ended < 0 or (events["result"][:ended] != SECTOR).any():
            raise OSError(ctypes.get_errno(), "io_getevents")
        free = events["data"][:ended].astype(np.int64)
        under_way -= ended
        done += ended
    speed = done / (time.perf_counter() - begun)
    call(_DESTROY, queue)
    os.close(fd)
    return speed
