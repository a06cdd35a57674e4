"""What tests of spaces ask other processes to do; the first argument is what that process keeps."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from openshelf import Array, Space
from tests.processes import State

SOUND = {"leaked_blocks": 0, "leaked_bytes": 0, "missing_blocks": 0, "damaged": 0}


def problems(space: Space) -> dict[str, int]:
    """What a check counts, without the two numbers that are no faults."""
    return {name: count for name, count in space.check().items() if name not in ("arrays", "bytes")}


def memory_of(space: Space, name: str) -> Any:
    """The bytes behind a name, of whatever kind it is."""
    pin = space._native.find(name)
    assert pin is not None
    return Array(pin, space).numpy("uint8")


def open_space(state: State, name: str = "shelf", mode: str = "rw") -> int:
    state["space"] = Space.open(name, mode)
    return int(state["space"].describe()["data_address"])


def close_space(state: State) -> None:
    state.pop("space").close()


def put(state: State, name: str, value: Any) -> int:
    return int(state["space"].put(name, value).address)


def read(state: State, name: str) -> Any:
    return state["space"][name].numpy().copy()


def address_of(state: State, name: str) -> int:
    return int(state["space"][name].address)


def hold(state: State, name: str) -> int:
    """Keeps a view, and nothing but the view."""
    array: Array = state["space"][name]
    state.setdefault("views", {})[name] = array.numpy()
    return array.address


def held(state: State, name: str) -> Any:
    return state["views"][name].copy()


def drop(state: State, name: str) -> None:
    del state["views"][name]


def delete(state: State, name: str) -> None:
    state["space"].delete(name)


def names(state: State) -> list[str]:
    return list(state["space"])


def read_at(state: State, address: int, shape: Any, dtype: str) -> Any:
    return state["space"].at(address, shape, dtype).numpy().copy()


def read_raw(state: State, address: int, nbytes: int) -> bytes:
    """Plain loads: no call of the package takes part."""
    return ctypes.string_at(address, nbytes)


def write_raw(state: State, address: int, value: int, nbytes: int) -> None:
    ctypes.memset(address, value, nbytes)


def check(state: State) -> dict[str, int]:
    return problems(state["space"])


def free_bytes(space: Space) -> int:
    return int(space.describe()["free"])


def pattern(seed: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that tell whose they are."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
