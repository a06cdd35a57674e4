"""Bare TCP between two processes: one asks with 16 bytes, the other answers from its memory, and nothing else happens.

What everything that goes over a wire is measured against. The loops are native.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np

from openshelf import _core

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def serve_bare(ip: str, source: Bytes) -> int:
    """Answers whoever connects, on a thread, as long as this process lives; returns the port."""
    listener = socket.create_server((ip, 0))

    def serve() -> None:
        while True:
            peer, _ = listener.accept()
            with peer:
                _core.serve_replies(peer.fileno(), source.ctypes.data, source.nbytes)

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def time_bare(line: socket.socket, target: Bytes, count: int, chunk: int = 1 << 20, spin_us: int = 0) -> list[float]:
    """Seconds of each of `count` replies that fill `target`."""
    return _core.time_replies(line.fileno(), target.ctypes.data, target.nbytes, chunk, count, spin_us)
