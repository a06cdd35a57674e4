"""The bare TCP peer that other transfers are measured against moves every byte, and refuses what it does not have."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from openshelf import _core


@pytest.fixture
def asker() -> Iterator[socket.socket]:
    """Connected to a thread that answers from 1 MiB of known bytes."""
    source = np.arange(1 << 18, dtype=np.uint32)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(ValueError):  # refused: the asker sees the end of the stream
            _core.serve_replies(peer.fileno(), source.ctypes.data, source.nbytes)

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, socket.create_connection(listener.getsockname()) as near:
        yield near
    thread.join()


@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.parametrize("chunk", [4096, 1 << 20])
def test_replies_carry_the_bytes(asker: socket.socket, chunk: int, spin_us: int) -> None:
    target = np.zeros(1 << 18, np.uint32)
    times = _core.time_replies(asker.fileno(), target.ctypes.data, target.nbytes - 4, chunk, 3, spin_us)
    assert len(times) == 3
    assert min(times) > 0
    assert (target[:-1] == np.arange((1 << 18) - 1, dtype=np.uint32)).all()
    assert target[-1] == 0


def test_asking_for_too_much_ends_the_stream(asker: socket.socket) -> None:
    target = np.zeros(2 << 20, np.uint8)
    with pytest.raises(RuntimeError, match="receive"):
        _core.time_replies(asker.fileno(), target.ctypes.data, target.nbytes, 1 << 20, 1)
