"""One process on one of the two hosts of the tour: it opens the space, loads, stores, and says what it took."""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import numpy as np

from openshelf.errors import NotPermitted
from openshelf.show.tour.bare import serve_bare, time_bare
from openshelf.show.tour.orders import obey
from openshelf.space import Array, Space

UNIT = 64 << 10
SPIN_US = 200


class _Process:
    space: Space
    unit: Array
    view: np.ndarray[Any, Any] | None
    bare: socket.socket

    def open(self, url: str) -> None:
        self.space = Space.open(url, contribute="16MiB")

    def make(self) -> None:
        """Two units' worth, so that one whole unit is inside wherever it lies."""
        self.space.zeros("shelf", 2 * UNIT // 8, "float64")

    def find(self) -> dict[str, Any]:
        array = self.space["shelf"]
        first = -array.address % UNIT // 8
        self.unit = array[first : first + UNIT // 8]
        reason = ""
        try:
            self.view = self.unit.numpy()
        except NotPermitted as error:
            self.view, reason = None, str(error)
        return {"address": self.unit.address, "home": array.home, "reason": reason}

    def load(self) -> tuple[float, float]:
        """(value, seconds) of a plain load; where nothing can be touched, of a get."""
        out = np.empty(UNIT // 8)
        started = time.perf_counter()
        if self.view is not None:
            value = self.view[0]
        else:
            self.space.get(self.unit, out).wait()
            value = out[0]
        return float(value), time.perf_counter() - started

    def store(self, value: float) -> float:
        data = np.full(UNIT // 8, value)
        started = time.perf_counter()
        if self.view is not None:
            self.view[0] = value
        else:
            self.space.put(self.unit, data).wait()
        return time.perf_counter() - started

    def state(self) -> str:
        return str(self.unit.state)

    def serve(self, ip: str) -> int:
        return serve_bare(ip, np.ones(UNIT, np.uint8))

    def connect(self, ip: str, port: int) -> None:
        self.bare = socket.create_connection((ip, port))

    def round_trips(self, count: int) -> list[float]:
        """The better of blocking and spinning."""
        target = np.zeros(UNIT, np.uint8)
        return min((time_bare(self.bare, target, count, UNIT, spin_us) for spin_us in (0, SPIN_US)), key=sum)

    def close(self) -> None:
        self.view = None
        del self.unit
        self.space.close()


def main() -> None:
    process = _Process()
    names = ("open", "make", "find", "load", "store", "state", "serve", "connect", "round_trips", "close")
    obey(sys.argv[1], {name: getattr(process, name) for name in names})


if __name__ == "__main__":
    main()
