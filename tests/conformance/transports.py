"""What the native wire promises: ordered, authenticated, encrypted frames among holders of a key.

- A frame arrives once, whole, unaltered and in order, or the connection ends: `HostLost` when the other side is gone,
  `Refused` when what came is not what was sent. There is no third outcome, and nothing is retried in silence.
- Nobody without the key gets a single byte from a listener, or keeps another dialer waiting.
- A listener is on loopback unless it is told an address.
- One thread may send while another receives; calls of the same kind take turns. `close()` ends waits in other threads
  with `Closed`.
- Payloads are bytes. What they mean is not the transport's business, and it never unpacks them into objects.

The package itself uses the wire from native code only. test_transports.py runs over all of TRANSPORTS.
"""

from __future__ import annotations

from typing import Protocol

from typing_extensions import Buffer

from openshelf import _core


class Connection(Protocol):
    """Two ends, each of which sends and receives frames of (type, id, bytes); type has 16 bits, id 64."""

    @property
    def peer(self) -> str:
        """The other side, as host:port."""

    def send(self, type: int, id: int, data: Buffer) -> None:
        """Hands a frame to the system; waits while the other side does not read. `data` is free on return.

        Raises BadInput above the transport's `largest_frame`, HostLost, Refused, Closed."""

    def receive(self, timeout: float | None = None) -> tuple[int, int, bytes] | None:
        """The next frame, or None when `timeout` seconds are over. Raises HostLost, Refused, Closed."""

    def receive_into(self, buffer: Buffer, timeout: float | None = None) -> tuple[int, int, int] | None:
        """As receive, the bytes into the beginning of `buffer`, their number as third.

        A frame that is too large for it raises BadInput and stays the next one. After Refused the buffer may hold
        anything.
        """

    def close(self) -> None:
        """Ends the connection; what was sent before still arrives if the other side reads it. Again: nothing."""


class Listener(Protocol):
    """Where dialers arrive. They are proven holders of the key before anybody sees them."""

    @property
    def port(self) -> int:
        """The port, also when the system chose it."""

    def accept(self, timeout: float | None = None) -> Connection | None:
        """The next dialer, or None when `timeout` seconds are over. Raises Closed."""

    def close(self) -> None:
        """Stops listening; accepted connections stay."""


class Transport(Protocol):
    """A way to carry frames between hosts."""

    name: str
    largest_frame: int  # bytes of one payload

    def connect(self, host: str, port: int, key: bytes, timeout: float = 5.0) -> Connection:
        """Dials. Raises HostLost when nobody answers in time (with another key nobody does), Refused, WrongVersion."""

    def listen(self, key: bytes, host: str = "127.0.0.1", port: int = 0) -> Listener:
        """Listens; port 0 is one of the system's choice. `key` is 32 bytes that only the hosts of one space have."""


class Tcp:
    """Frames over TCP, sealed with AES-128-OCB by the machine's OpenSSL; docs/formats/hosts.md has the bytes."""

    name = "tcp"
    largest_frame = _core.FRAME_MAX

    def connect(self, host: str, port: int, key: bytes, timeout: float = 5.0) -> Connection:
        return _core.Wire.connect(host, port, key, timeout)

    def listen(self, key: bytes, host: str = "127.0.0.1", port: int = 0) -> Listener:
        return _core.WireListener(host, port, key)


TCP = Tcp()
TRANSPORTS: tuple[Transport, ...] = (TCP,)
