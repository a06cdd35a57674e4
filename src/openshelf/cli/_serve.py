"""Texts over HTTP, for whoever asks for them on this machine: GET of a few paths, and nothing else.

A request has a few seconds and a few KiB, then it is refused. When too many have not said what they want, the oldest of
them is hung up on: silence keeps nobody out. No path is looked up in any file system. Where only this machine may ask,
a name in the Host header is refused: a page in a browser that had its own name lead here would be answered otherwise.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus

from openshelf.errors import BadInput, NotPermitted, OpenshelfError

Page = Callable[[], tuple[bool, str]]  # whether all is well, and the text; else the status is 503
_MOST_BYTES, _MOST_S, _MOST_AT_ONCE = 8 << 10, 5.0, 16
_AGAIN_S = 0.02
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def parse_address(text: str, anybody: bool) -> tuple[str, int]:
    """Address and port of HOST:PORT. NotPermitted for one that other machines reach, unless `anybody` may."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not int(port) <= 65535:
        raise BadInput(f"{text!r} is not an address to listen at; expected such as '127.0.0.1:9100' or '[::1]:9100'")
    name = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise BadInput(f"{host!r} is not an address of this machine; expected such as 127.0.0.1 or [::1]") from None
    if not address.is_loopback and not anybody:
        raise NotPermitted(
            f"{text}: other machines could ask there, without a password, who has which spaces; listen at 127.0.0.1, "
            "or pass --anybody if that is meant"
        )
    return str(address), int(port)


def serve(host: str, port: int, pages: Mapping[str, Page], anybody: bool, began: Callable[[str], None]) -> None:
    """Answers until it is interrupted; `began` gets the URL of the first page."""
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise NotPermitted(f"cannot listen at {host}:{port}: {error.strerror}") from None
    shown = f"[{host}]" if ":" in host else host
    began(f"http://{shown}:{listener.getsockname()[1]}{next(iter(pages))}")
    asyncio.run(_Server(pages, anybody).run(listener))


class _Server:
    def __init__(self, pages: Mapping[str, Page], anybody: bool) -> None:
        self._pages, self._anybody, self._alone = pages, anybody, asyncio.Lock()
        self._silent: dict[asyncio.StreamWriter, None] = {}  # who has not asked yet, the oldest first
        self._waiting = 0  # for an answer

    async def run(self, listener: socket.socket) -> None:
        """asyncio's own server would print a traceback for each who comes when no descriptor is left."""
        listener.setblocking(False)
        loop, guests = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # no descriptor is left, or who came has gone
                self._hang_up()
                await asyncio.sleep(_AGAIN_S)
                continue
            reader, writer = await asyncio.open_connection(sock=connection, limit=_MOST_BYTES)
            guest = asyncio.create_task(self._connected(reader, writer))
            guests.add(guest)
            guest.add_done_callback(guests.discard)

    def _hang_up(self) -> None:
        """On who has been silent for longest."""
        if self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._silent) >= _MOST_AT_ONCE:
            self._hang_up()
        self._silent[writer] = None
        try:
            async with asyncio.timeout(_MOST_S):
                wanted = await self._request(reader)
            self._silent.pop(writer, None)
            answer = wanted if isinstance(wanted, bytes) else await self._asked(wanted)
            async with asyncio.timeout(_MOST_S):
                writer.transport.set_write_buffer_limits(0)
                writer.write(answer)
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # It was too slow, or has gone, or this server ends: asyncio would tell of a task that was cancelled.
            writer.transport.abort()
        finally:
            self._silent.pop(writer, None)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> bytes | Page:
        """Reads a request: which page it is for, or the answer if it gets none."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.LimitOverrunError:
            return _answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        method, _, rest = head[0].partition(" ")
        path, _, version = rest.partition(" ")
        hosts = [line[5:].strip() for line in head[1:] if line[:5].lower() == "host:"]
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            return _answer(HTTPStatus.BAD_REQUEST)
        if not self._anybody and not all(map(_is_here, hosts)):
            return _answer(HTTPStatus.FORBIDDEN, "ask by address, or by localhost\n")
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            return _answer(HTTPStatus.NOT_FOUND, f"there is {' and '.join(self._pages)}, and nothing else\n")
        if method != "GET":
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, more=("Allow: GET",))
        return page

    async def _asked(self, page: Page) -> bytes:
        """One at a time, and beside the loop: hosts that are down take a while."""
        if self._waiting >= _MOST_AT_ONCE:
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask at once\n")
        self._waiting += 1
        try:
            async with self._alone:
                well, text = await asyncio.to_thread(page)
            return _answer(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, text)
        except (OpenshelfError, OSError) as error:  # no descriptor may be left to look with
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n")
        finally:
            self._waiting -= 1


def _is_here(host: str) -> bool:
    """Whether a Host header names a machine by address, or as localhost."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False


def _answer(status: HTTPStatus, text: str | None = None, more: tuple[str, ...] = ()) -> bytes:
    body = (text if text is not None else f"{status.phrase}\n").encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {_TYPE}", f"Content-Length: {len(body)}",
        "Connection: close", *more,
    )  # fmt: skip
    return "\r\n".join((*head, "", "")).encode("latin-1") + body
