"""A keeper is killed just after it gave an array out, and another thread tells the next keeper what is held."""

from __future__ import annotations

import contextlib
import socket
import threading

import numpy as np

from openshelf import _core
from tests.processes import Peer
from tests.space.hosts.calls import faraway
from tests.space.hosts.calls.faraway import Place, Relay, call_on, put

WAIT = 30.0


class LateAnswers(Relay):
    """A link that holds answers back on the connections of a moment; questions pass, and new connections do."""

    def __init__(self, place: Place) -> None:
        self.gate, self.came = threading.Event(), threading.Event()
        self.gate.set()
        super().__init__(place)

    def hold(self) -> threading.Event:
        held, self.gate = self.gate, threading.Event()
        self.gate.set()
        held.clear()
        return held

    def lead_to(self, place: Place) -> None:
        host, port = place[0].rsplit(":", 1)
        self._to = (host, int(port))

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        gate, answers = self.gate, self._ends.index(source) % 2 == 1
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and not gate.is_set():
                    self.came.set()
                    gate.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def test_an_array_that_a_killed_keeper_gave_out_last_is_asked_for_again(server: Peer, place: Place) -> None:
    relay = LateAnswers(place)
    remote = call_on(relay.place)
    put(remote, "a", np.zeros(8, "int64"))
    found: list[_core.RemotePin | None] = []
    with Peer() as next_one:
        next_one.call(faraway.nothing)  # it is there at once when it is needed: a host may be silent for 2.5 seconds
        held = relay.hold()
        finder = threading.Thread(target=lambda: found.append(remote.find("a")))
        finder.start()
        assert relay.came.wait(WAIT)  # it was given out, and the answer is on its way
        server.kill()
        relay.lead_to(next_one.call(faraway.serve))
        assert remote.contains("a")  # by another connection, on which the next keeper is told what is held
        held.set()
        finder.join(WAIT)
        (pin,) = found
        assert pin is not None
        assert _core.add_i8(pin, 0, 5) == 0
        assert _core.add_i8(pin, 0, 0) == 5
        remote.close()
