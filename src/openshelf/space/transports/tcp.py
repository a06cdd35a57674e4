"""Frames over TCP, sealed with AES-128-OCB by the machine's OpenSSL: native/net/wire.hpp; docs/formats.md has the bytes."""

from __future__ import annotations

from openshelf import _core
from openshelf.space.transports.base import Connection, Listener


class Tcp:
    """The transport that works everywhere."""

    name = "tcp"
    largest_frame = _core.FRAME_MAX

    def connect(self, host: str, port: int, key: bytes, timeout: float = 5.0) -> Connection:
        return _core.Wire.connect(host, port, key, timeout)

    def listen(self, key: bytes, host: str = "127.0.0.1", port: int = 0) -> Listener:
        return _core.WireListener(host, port, key)
