"""What the processes of the model test do; apart, so that one of them starts without importing the test."""

from __future__ import annotations

from openshelf import Space
from openshelf.errors import NameTaken, UnknownName
from tests.processes import State
from tests.space import shelf


def enter(state: State, path: str) -> None:
    state["space"], state["views"] = Space.open(path), {}


def put(state: State, name: str, seed: int, nbytes: int, replace: bool) -> bool:
    try:
        state["space"].put(name, shelf.pattern(seed, nbytes), replace=replace)
    except NameTaken:
        return False
    return True


def new(state: State, name: str, seed: int, nbytes: int, fail: bool) -> bool:
    try:
        with state["space"].new(name, nbytes, "uint8") as draft:
            if draft.numpy().any():
                raise AssertionError("a new array is not zero")
            draft.numpy()[:] = shelf.pattern(seed, nbytes)
            if fail:
                raise ZeroDivisionError
    except (NameTaken, ZeroDivisionError):
        return False
    return True


def delete(state: State, name: str) -> bool:
    try:
        state["space"].delete(name)
    except UnknownName:
        return False
    return True


def rename(state: State, name: str, to: str) -> str:
    try:
        state["space"].rename(name, to)
    except (UnknownName, NameTaken) as error:
        return type(error).__name__
    return ""


def get(state: State, name: str) -> tuple[int, bytes] | None:
    array = state["space"].get(name)
    return None if array is None else (array.address, array.numpy().tobytes())


def at(state: State, address: int, nbytes: int) -> bytes:
    return bytes(state["space"].at(address, nbytes, "uint8").numpy().tobytes())


def entries(state: State) -> dict[str, int]:
    return {entry.name: entry.nbytes for entry in state["space"].list()}


def hold(state: State, name: str, key: int) -> bool:
    array = state["space"].get(name)
    if array is not None:
        state["views"][key] = array.numpy()
    return array is not None


def hold_anonymous(state: State, seed: int, nbytes: int, key: int) -> None:
    state["views"][key] = state["space"].put(None, shelf.pattern(seed, nbytes)).numpy()


def held(state: State) -> dict[int, bytes]:
    return {key: view.tobytes() for key, view in state["views"].items()}


def drop(state: State, key: int) -> None:
    del state["views"][key]


def reopen(state: State, path: str) -> None:
    state["space"].close()
    state["space"] = Space.open(path)


def forget(state: State) -> None:
    state["views"].clear()
    state.pop("space").close()
