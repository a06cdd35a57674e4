"""Packed: a model's weights in one file, in the order in which they are needed, to be streamed."""

from __future__ import annotations

import os
from pathlib import Path

from openshelf._core import SECTOR, StreamFile
from openshelf.errors import Corrupt, FlashFailed, NotPermitted, UnknownName
from openshelf.offload.weights import format as form
from openshelf.offload.weights.files import open_direct

_LONGEST_TABLE = 256 << 20


def is_packed(path: Path) -> bool:
    """Whether it begins as packed files do; it may be cut or altered."""
    with path.open("rb") as file:
        return file.read(len(form.MAGIC)) == form.MAGIC


class Packed:
    """An open packed file. Its head was checked; a storage's bytes are checked when they are read.

    `named`: others can open it too.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Takes the descriptor over, which may be direct."""
        self.file = StreamFile(descriptor, path)
        self.path = path
        with open(f"/proc/self/fd/{descriptor}", "rb") as plain:
            raw = plain.read(SECTOR)
            head = form.decode_head(raw, path)
            status = os.fstat(plain.fileno())
            size, self.named = status.st_size, status.st_nlink > 0
            if not SECTOR <= head.begins <= head.nbytes <= size or head.table_bytes > head.begins - SECTOR:
                raise Corrupt(f"{path} has {size} bytes, and its head says {head.nbytes}: it was cut; remove the file")
            if head.table_bytes > _LONGEST_TABLE:
                raise Corrupt(f"{path}: its head says a table of {head.table_bytes} bytes; remove the file")
            text = plain.read(head.table_bytes)
        table = form.decode_table(raw, head, text, path)
        self.storages, self.tensors = table.storages, table.tensors
        self.key, self.generation = head.key, head.generation
        self.begins, self.nbytes = head.begins, head.nbytes

    @staticmethod
    def open(path: Path | str) -> Packed:
        """Corrupt if the head was altered, WrongVersion if another version of Openshelf made it.

        NotPermitted if it is no file of this user or of root that only they can write.
        """
        try:
            return Packed(open_direct(path, os.O_RDONLY), str(path))
        except NotPermitted:
            raise
        except OSError as error:
            raise FlashFailed(f"opening the packed file {path} failed: {error}") from error

    def storage_of(self, name: str) -> form.PackedStorage:
        """The storage that the tensor of this name is in."""
        try:
            return self.storages[self.tensors[name].storage]
        except KeyError:
            raise UnknownName(f"{self.path} has no tensor {name!r}; it has {len(self.tensors)} others") from None

    def __repr__(self) -> str:
        return f"Packed({self.path!r}, {len(self.tensors)} tensors, {self.nbytes} bytes)"
