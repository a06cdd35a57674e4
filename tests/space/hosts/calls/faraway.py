"""A host on loopback for tests of calls between hosts: one process that serves a space, others that call it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from openshelf import Space, _core
from openshelf.space.create import registry
from tests.processes import Peer, State
from tests.space.shelf import SOUND

KEY = bytes(range(32))
UINT8 = 3  # its number, see docs/formats/space.md
LOCK, BARRIER, CHANNEL = 1, 2, 3

Place = tuple[str, int, int]  # host, base, reserve


def serve(state: State, name: str = "shelf", port: int = 0, incarnation: int = 1) -> Place:
    """Opens the space, or makes it, and serves it."""
    if (registry.root() / name).exists():
        state["space"] = Space.open(name)
    else:
        state["space"] = Space.create(name, "64MiB")
    core = state["core"] = state["space"]._native
    state["server"] = _core.serve_for_tests(core, KEY, "127.0.0.1", port, incarnation)
    stats = core.stats()
    return f"127.0.0.1:{state['server'].port}", stats["base"], stats["reserve"]


def ask_core(state: State, method: str, *arguments: Any) -> Any:
    """A method of the space itself, in its home; a pin is returned as its address."""
    result = getattr(state["core"], method)(*arguments)
    return result.address if isinstance(result, _core.Pin) else result


def processes(state: State) -> int:
    """How many processes on other hosts it serves."""
    return int(state["server"].processes)


def stop(state: State) -> None:
    state.pop("server").stop()


def call_on(
    place: Place, space: str = "shelf", key: bytes = KEY, read_only: bool = False, other: dict[str, int] | None = None
) -> _core.Remote:
    host, base, reserve = place
    fields = {"own": 1, "hosts": 2, "base": base, "reserve": reserve, "hosts_hash": 0} | (other or {})
    return _core.Remote(host, 0, key, space, read_only=read_only, **fields)


def put(remote: _core.Remote, name: str, value: Any, replace: bool = False) -> _core.RemotePin:
    data = np.ascontiguousarray(value).view(np.uint8).reshape(-1)
    return remote.put(data, data.nbytes, UINT8, 0, data.shape, "", name, replace)


def make(remote: _core.Remote, name: str, nbytes: int, kind: int = 0) -> _core.RemotePin:
    pin = remote.make(nbytes, UINT8, kind, (nbytes,), "", name, True)
    if name:
        remote.publish(pin, False)
    return pin


def bytes_of(remote: _core.Remote, pin: _core.RemotePin) -> Any:
    out = np.empty(pin.nbytes, np.uint8)
    assert remote.get_bytes([pin.address], out, pin.nbytes).wait()
    return out


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is done ends in so long, not counting by how much a thread beside it wakes up late on a busy machine."""
    nap, late, over = 0.02, 0.0, threading.Event()

    def sleep() -> None:
        nonlocal late
        asleep = time.monotonic()
        while not over.wait(nap):
            now = time.monotonic()
            late += max(0.0, now - asleep - nap)
            asleep = now

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    start = time.monotonic()
    try:
        yield
        took = time.monotonic() - start
    finally:
        over.set()
        sleeper.join()
    assert took - late < seconds, f"it took {took:.1f} s; the machine was late by {late:.1f} s"


def free(server: Peer) -> int:
    server.call(ask_core, "collect")
    return int(server.call(ask_core, "stats")["free"])


def sound(server: Peer) -> None:
    found = server.call(ask_core, "audit")
    assert {name: found[name] for name in SOUND} == SOUND


# What a process that calls is asked to do


def connect(state: State, place: Place) -> None:
    state["remote"] = call_on(place)
    state["pins"] = {}


def hold(state: State, name: str) -> int:
    pin = state["pins"][name] = state["remote"].find(name)
    return int(pin.address)


def take(state: State, name: str, timeout: float) -> bool | None:
    return _core.lock_take(state["pins"][name], timeout)


def begin_taking(state: State, name: str) -> None:
    """In a thread, for ever."""
    state["thread"] = threading.Thread(target=_core.lock_take, args=(state["pins"][name], -1.0), daemon=True)
    state["thread"].start()


def meet(state: State, name: str, timeout: float) -> int:
    return _core.barrier_wait(state["pins"][name], timeout)


def add(state: State, name: str, times: int) -> None:
    for _ in range(times):
        _core.add_i8(state["pins"][name], 0, 1)


def send(state: State, name: str, message: bytes) -> bool:
    return _core.channel_send(state["pins"][name], message, None, 5.0)


def close(state: State) -> None:
    state["pins"].clear()
    state.pop("remote").close()


def started(home: Peer) -> Place:
    place: Place = home.call(serve)
    return place


def serve_again(state: State, port: int, after: float) -> None:
    """Serves the space that it has open, on a port it had."""
    time.sleep(after)
    state["server"] = _core.serve_for_tests(state["core"], KEY, "127.0.0.1", port, 1)


def nothing(state: State) -> None:
    pass


def serve_after(state: State, seconds: float, port: int) -> Place:
    time.sleep(seconds)
    return serve(state, "shelf", port)


class Relay:
    """A link between hosts that can be cut: connections end, or nothing passes any more and nobody is told."""

    def __init__(self, place: Place) -> None:
        host, port = place[0].rsplit(":", 1)
        self._to = (host, int(port))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.place: Place = (f"127.0.0.1:{self._door.getsockname()[1]}", *place[1:])
        self._open = threading.Event()
        self._open.set()
        self._up = True
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._door.accept()
                if not self._up:
                    here.close()
                    continue
                there = socket.create_connection(self._to)
                self._ends += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Nothing passes; to both sides the connections seem whole."""
        self._open.clear()

    def cut(self) -> None:
        """All connections end, and new ones do not come about."""
        self._up = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()
        self._open.set()

    def mend(self) -> None:
        self._up = True
        self._open.set()
