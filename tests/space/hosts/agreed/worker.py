"""What processes on hosts do in these tests."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from openshelf import Space
from openshelf.errors import HostLost, NoAgreement, NoRoom, OpenshelfError, UnknownName
from openshelf.kv import KVPool, Layout
from openshelf.tables import Table
from tests.processes import State


def join(state: State, url: str, room: str = "16MiB") -> int:
    """Opens the space; the number of this host."""
    state["space"] = Space.open(url, contribute=room)
    return int(state["space"]._native.shard.own)


def put(state: State, name: str, value: int, replace: bool = True) -> int:
    """Publishes eight words; their address."""
    return int(state["space"].put(name, np.full(8, value, np.int64), replace=replace).address)


def tried(state: State, call: Any, *arguments: Any) -> tuple[str, str]:
    """The kind and the text of the error that a call raises; empty if none."""
    try:
        call(state, *arguments)
    except OpenshelfError as error:
        return type(error).__name__, str(error)
    return "", ""


def read(state: State, name: str) -> list[int]:
    return [int(one) for one in state["space"][name].numpy()]


def hold(state: State, name: str) -> int:
    state["held"] = state["space"][name]
    return int(state["held"].address)


def store(state: State, index: int, value: int) -> None:
    """Through a view: a plain store."""
    state["held"].numpy()[index] = value


def read_held(state: State) -> list[int]:
    return [int(one) for one in state["held"].numpy()]


def let_go(state: State) -> None:
    del state["held"]


def seen(state: State, name: str) -> tuple[bool, list[str], list[int]]:
    """All ways to look for a name: whether it is there, all names, and what it holds."""
    space = state["space"]
    return name in space, list(space), read(state, name)


def make_lock(state: State, name: str) -> None:
    state["space"].lock(name)


def take_lock(state: State, name: str) -> None:
    state["lock"] = state["space"].lock(name)
    state["lock"].acquire()


def drop_lock(state: State) -> None:
    state["lock"].release()


def try_lock(state: State, name: str, seconds: float = 0) -> bool:
    return bool(state["space"].lock(name).acquire(timeout=seconds))


def epoch(state: State) -> int:
    return int(state["space"]._native.attachment.epoch)


def write_at(state: State, address: int, value: int) -> None:
    """By a call to the home."""
    state["space"].put(address, np.full(8, value, np.int64)).wait(timeout=20)


def read_at(state: State, address: int) -> int:
    out = np.zeros(8, np.int64)
    state["space"].get(address, out).wait(timeout=20)
    return int(out[0])


def write_when_back(state: State, address: int, value: int, seconds: float) -> None:
    """As `write_at`, until it is accepted."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return write_at(state, address, value)
        except HostLost:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def names(state: State) -> list[str]:
    return list(state["space"])


def hosts(state: State) -> dict[str, str]:
    return {one["host"]: one["state"] for one in state["space"].hosts()}


def term(state: State) -> int:
    return int(state["space"]._native.attachment.term)


def delete(state: State, name: str) -> None:
    state["space"].delete(name)


def rename(state: State, name: str, to: str) -> None:
    state["space"].rename(name, to)


def close(state: State) -> None:
    state.clear()


def remove(state: State, url: str) -> None:
    Space.remove(url)


def look_again(state: State) -> str:
    """Of the array that is held from before."""
    return str(state["held"].name)


def read_fresh(state: State, name: str) -> list[int]:
    """After what was held is let go of."""
    state.pop("held", None)
    return read(state, name)


def put_when_agreed(state: State, name: str, value: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return put(state, name, value)
        except (NoAgreement, HostLost):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def until_agreed(state: State, call: Any, arguments: tuple[Any, ...], seconds: float) -> tuple[str, str]:
    """As `tried`, once the hosts agree again."""
    deadline = time.monotonic() + seconds
    while True:
        kind, text = tried(state, call, *arguments)
        if kind not in ("NoAgreement", "HostLost") or time.monotonic() > deadline:
            return kind, text
        time.sleep(0.1)


def until_back(state: State, call: Any, seconds: float) -> tuple[str, str]:
    """As `tried`, once this host has joined again."""
    deadline = time.monotonic() + seconds
    while True:
        kind, text = tried(state, call)
        if "given the caller up" not in text or time.monotonic() > deadline:
            return kind, text
        time.sleep(0.05)


def join_when_agreed(state: State, url: str, seconds: float) -> int:
    kind, text = until_agreed(state, join, (url,), seconds)
    assert not kind, text
    return int(state["space"]._native.shard.own)


def read_when_there(state: State, name: str, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(NoAgreement):  # etcd may choose a leader just now
            if name in state["space"]:
                return read(state, name)
        time.sleep(0.05)
    return read(state, name)


def claim_only(state: State, name: str) -> None:
    """All of a publication but its last step."""
    cluster = state["space"]._native
    state["draft"] = cluster.make(64, 0, 0, (8,), "", name, True)
    with contextlib.suppress(_Stop), cluster._names._owned(cluster, state["draft"], name, False):
        raise _Stop("nobody knows whether it was done")


def rename_half(state: State, name: str, to: str) -> None:
    """All of a rename but its last step; what it needs for that it still has."""
    cluster = state["space"]._native
    state["array"] = pin = cluster.find(name)

    def stop(draft: Any) -> None:
        state["draft"] = draft
        raise _Stop("nobody knows whether it was done")

    with contextlib.suppress(_Stop):
        cluster._names.give(cluster, pin, to, stop)


def rename_late(state: State, name: str, to: str) -> None:
    """The last step, when others may have given up waiting for it."""
    cluster = state["space"]._native
    cluster._rename(cluster.number_of(state["array"].address), name, to, state["draft"])


class _Stop(HostLost):
    """After this the record of the owner stays."""


def make_table(state: State, name: str, hosts: str | None) -> int:
    return len(Table.create(state["space"], name, rows=100, dim=8, hosts=hosts))


def put_at_home(state: State, name: str, value: int, home: str, seconds: float) -> str:
    """Publishes words that live on another host, once that host is there; their home."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return str(state["space"].put(name, np.full(8, value, np.int64), home=home).home)
        except (HostLost, UnknownName):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def join_replicated(state: State, url: str, replicas: int = 2) -> int:
    state["space"] = Space.open(url, contribute="16MiB", replicas=replicas)
    return int(state["space"]._native.shard.own)


def flush(state: State) -> None:
    state["held"].flush()


def mend(state: State) -> bool:
    return bool(state["space"]._native.mend())


def count_up(state: State, name: str, seconds: float) -> int:
    """Publishes one number after the other; the last that was acknowledged."""
    deadline, number, acknowledged = time.monotonic() + seconds, 0, 0
    while time.monotonic() < deadline:
        number += 1
        with contextlib.suppress(HostLost, NoAgreement, NoRoom):
            put(state, name, number)
            acknowledged = number
    return acknowledged


def copies_only(state: State, name: str, value: int) -> None:
    cluster = state["space"]._native
    names = cluster._kept

    def stop(*arguments: Any) -> bool:
        raise KeyboardInterrupt

    names._membership.commit = names._settle = stop
    with contextlib.suppress(KeyboardInterrupt):
        put(state, name, value)


def forget_making(state: State) -> None:
    membership = state["space"]._native._kept._membership
    _, pairs = membership.store.read([membership._root + "making/"])
    membership.store.change([], {}, list(pairs))


def hidden(state: State) -> list[int]:
    """The number of this host for each copy that is here."""
    cluster = state["space"]._native
    return [cluster.shard.own for _ in cluster.core.list("\x04")]


def refused(state: State, name: str) -> list[tuple[str, str]]:
    """What a space with replicas does not do."""
    space = state["space"]
    layout = Layout("tree", layers=2, heads=2, head_dim=4, dtype="int32")
    calls: list[Any] = [
        lambda _: space.lock("l"),
        lambda _: space.barrier("b", 2),
        lambda _: space.channel("c"),
        lambda _: space.counter("n"),
        lambda _: space[name].atomic(),
        lambda _: space.put(space[name].address, np.zeros(8, np.int64)),
        lambda _: space.rename(name, "other"),
        lambda _: space.new(None, 8).publish("other"),
        lambda _: Table.create(space, "t", rows=8, dim=4),
        lambda _: KVPool(space, layout),
    ]
    return [tried(state, call) for call in calls]


def until_alone(state: State, name: str, seconds: float) -> tuple[str, str]:
    """A publication, once the other hosts were given up."""
    deadline = time.monotonic() + seconds
    while True:
        kind, text = tried(state, put, name, 1)
        if "1 of 1" in text or time.monotonic() > deadline:
            return kind, text
