"""A disk with a volatile cache, as a server of NBD: what was not flushed is lost, kept or torn when the power is cut.

Since the last flush each sector has a list of what it was; `cut` gives it its last durable content, or one of the later
ones. QEMU is the client, so that a guest sees a disk that says that it has a write-back cache.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import socket
import struct
import threading
from pathlib import Path
from typing import BinaryIO

_SECTOR = 512
_MAGIC, _OPTION, _REPLY, _ANSWER = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9, 0x67446698
_FLAGS = 1 | 4 | 8  # has flags; knows flush and FUA
_EXPORT, _ABORT, _INFO, _GO = 1, 2, 6, 7  # options
_READ, _WRITE, _LEAVE, _FLUSH = 0, 1, 2, 3
_FUA = 1


class _Left(Exception):
    """The client is gone, or the power is."""


def _need(lines: BinaryIO, count: int) -> bytes:
    data = lines.read(count)
    if len(data) < count:
        raise _Left
    return data


class LossyDisk:
    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        file = os.open(image, os.O_RDWR)
        self._now = mmap.mmap(file, os.fstat(file).st_size)
        os.close(file)
        self._older: dict[int, list[bytes]] = {}  # by sector: what it was since the last flush, the durable one first
        self._lock = threading.Lock()
        self._writes_left = -1
        self.dead = threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(4)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()
        self.path.unlink()

    def cut_at(self, writes: int) -> None:
        """The power goes when so many writes more have come; `dead` is set then."""
        with self._lock:
            self._writes_left = writes

    def cut(self, chance: random.Random) -> int:
        """What is there after the power was gone (the guest has none by now). How many sectors were not durable."""
        keep = chance.choice([0.0, 0.2, 0.5, 0.8, 1.0])
        with self._lock:
            for sector, contents in self._older.items():
                if chance.random() >= keep:
                    self._now[sector * _SECTOR : (sector + 1) * _SECTOR] = chance.choice(contents)
            count = len(self._older)
            self._older.clear()
            self.dead.clear()
            self._writes_left = -1
        return count

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        lines = client.makefile("rb")
        with contextlib.suppress(_Left, OSError):
            self._agree(client, lines)
            while True:
                _, how, kind, handle, at, count = struct.unpack(">IHHQQI", _need(lines, 28))
                data = _need(lines, count) if kind == _WRITE else b""
                answer = self._handle(kind, how, at, count, data)
                client.sendall(struct.pack(">IIQ", _ANSWER, 0, handle) + answer)
        client.close()

    def _agree(self, client: socket.socket, lines: BinaryIO) -> None:
        client.sendall(struct.pack(">QQH", _MAGIC, _OPTION, 3))
        _need(lines, 4)
        size = len(self._now)
        while True:
            _, option, count = struct.unpack(">QII", _need(lines, 16))
            _need(lines, count)
            if option in (_INFO, _GO):
                client.sendall(struct.pack(">QIII", _REPLY, option, 3, 12) + struct.pack(">HQH", 0, size, _FLAGS))
                client.sendall(struct.pack(">QIII", _REPLY, option, 1, 0))
                if option == _GO:
                    return
            elif option == _EXPORT:
                client.sendall(struct.pack(">QH", size, _FLAGS) + b"\0" * 124)
                return
            elif option == _ABORT:
                raise _Left
            else:
                client.sendall(struct.pack(">QIII", _REPLY, option, 0x80000001, 0))

    def _handle(self, kind: int, how: int, at: int, count: int, data: bytes) -> bytes:
        with self._lock:
            if kind == _LEAVE or self.dead.is_set():
                raise _Left
            if kind == _READ:
                return self._now[at : at + count]
            if kind == _FLUSH:
                self._older.clear()
            if kind == _WRITE:
                self._write(at, data, durable=bool(how & _FUA))
                if self.dead.is_set():
                    raise _Left  # in the cache, and not acknowledged
            return b""

    def _write(self, at: int, data: bytes, durable: bool) -> None:
        sectors = range(at // _SECTOR, (at + len(data)) // _SECTOR)
        for sector in sectors:
            self._older.setdefault(sector, []).append(self._now[sector * _SECTOR : (sector + 1) * _SECTOR])
        self._now[at : at + len(data)] = data
        self._writes_left -= self._writes_left > 0
        if self._writes_left == 0:
            self.dead.set()
        elif durable:
            for sector in sectors:
                self._older.pop(sector, None)
