"""Rows of a table in the stores of others: Redis, LMDB, RocksDB. Each is asked for many rows at once, in the quickest
way that was found, by one thread, and gives them one after the other in one array."""

from __future__ import annotations

import contextlib
import importlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from kit.servers import Server, needs

Array = np.ndarray[Any, Any]
STEP = 4096


def keys_of(ids: Array) -> list[bytes]:
    """Eight bytes each, the high one first: in the order of numbers."""
    text = ids.astype(">u8").tobytes()
    return [text[at : at + 8] for at in range(0, len(text), 8)]


class RowStore(ABC):
    name: str

    def __init__(self, home: Path) -> None:
        self.home, self.closing = home, contextlib.ExitStack()

    @abstractmethod
    def put(self, keys: list[bytes], rows: Array) -> None: ...

    def filled(self) -> None:  # noqa: B027 - most are ready
        """All rows are there."""

    @abstractmethod
    def get(self, keys: list[bytes]) -> bytes:
        """The rows' bytes, joined."""

    def rows(self, keys: list[bytes], dim: int) -> Array:
        return np.frombuffer(self.get(keys), np.float32).reshape(-1, dim)


class Redis(RowStore):
    """MGET over a Unix socket, replies parsed by hiredis."""

    name = "Redis MGET"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        needs("redis", "the redis client")
        path = str(home / "redis.sock")
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(home)]
        server = Server(command, lambda: os.path.exists(path), home / "redis.log")
        self.closing.callback(server.stop)
        server.wait()
        self.client = importlib.import_module("redis").Redis(unix_socket_path=path)

    def put(self, keys: list[bytes], rows: Array) -> None:
        self.client.mset(dict(zip(keys, (row.tobytes() for row in rows), strict=True)))

    def get(self, keys: list[bytes]) -> bytes:
        return b"".join(self.client.mget(keys))


class Lmdb(RowStore):
    """A file in memory, read in one transaction without locks of its own."""

    name = "LMDB"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        needs("lmdb", "lmdb")
        self.db = importlib.import_module("lmdb").open(
            str(home / "lmdb"), map_size=64 << 30, sync=False, writemap=True, readahead=False
        )
        self.closing.callback(self.db.close)

    def put(self, keys: list[bytes], rows: Array) -> None:
        with self.db.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(list(zip(keys, (row.tobytes() for row in rows), strict=True)), append=True)

    def get(self, keys: list[bytes]) -> bytes:
        with self.db.begin(buffers=True) as transaction:
            return b"".join([transaction.get(key) for key in keys])


class RocksDB(RowStore):
    """multi_get, with a block cache of so many bytes; none: as large as the default."""

    name = "RocksDB"

    def __init__(self, home: Path, cache: int | None = None) -> None:
        super().__init__(home)
        needs("rocksdict", "rocksdict")
        rocks = importlib.import_module("rocksdict")
        options = rocks.Options(raw_mode=True)
        options.set_compression_type(rocks.DBCompressionType.none())
        if cache is not None:
            table = rocks.BlockBasedOptions()
            table.set_block_cache(rocks.Cache(cache))
            table.set_bloom_filter(10, False)
            table.set_cache_index_and_filter_blocks(True)
            options.set_block_based_table_factory(table)
            options.set_use_direct_reads(True)
        self.db = rocks.Rdict(str(home / "rocks"), options)
        self.closing.callback(self.db.close)

    def put(self, keys: list[bytes], rows: Array) -> None:
        batch = importlib.import_module("rocksdict").WriteBatch(raw_mode=True)
        for key, row in zip(keys, rows, strict=True):
            batch.put(key, row.tobytes())
        self.db.write(batch)

    def filled(self) -> None:
        self.db.flush()
        self.db.compact_range(None, None)

    def get(self, keys: list[bytes]) -> bytes:
        return b"".join(self.db[keys])


def fill(store: RowStore, lookup: Any, rows: int) -> None:
    for first in range(0, rows, STEP):
        ids = np.arange(first, min(rows, first + STEP))
        store.put(keys_of(ids), lookup(ids))
    store.filled()
