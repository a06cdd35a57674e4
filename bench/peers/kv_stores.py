"""The stores of bench/kv_peers.py: one prefix that another process stored, had in this one.

What a store is asked, ours, and Redis; kv_mooncake.py and kv_lmcache.py have the others. Each is used in the quickest
way that was found, on loopback and in host memory. The keys of Redis and Mooncake are made beforehand; ours and
LMCache's are hashed from tokens in the time that is taken.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import mmap
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kit.servers import Absent, Server, needs
from openshelf import KVPool, Layout, Space

LLAMA = Layout("llama", layers=32, heads=8, head_dim=128, dtype="float16")
BLOCKS = 128  # of LLAMA: 256 MiB, where memcpy is at its best
TOKENS = BLOCKS * 16
BLOCK_NBYTES = 2 << 20
PREFIX_START, PUT_START = 30_000_000, 40_000_000  # the first tokens of what is read and of what is put
Array = np.ndarray[Any, Any]


def private(shape: tuple[int, ...]) -> Array:
    """Touched anonymous memory in 4 KiB pages, as the pool's are."""
    memory = mmap.mmap(-1, int(np.prod(shape)) * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(memory, np.float16).reshape(shape)
    array[:] = 1.0
    return array


def prefix_cache() -> Array:
    """The keys and values that are stored, equal in every process."""
    cache = private(LLAMA.shape(TOKENS))
    cache[:] = np.random.default_rng(1).random(cache.shape[-1]).astype(np.float16)
    cache[:, :, ::16, 0, 0] = np.arange(BLOCKS)
    return cache


def blocks_of(cache: Array) -> list[Array]:
    """Each block's bytes in one piece."""
    return [np.ascontiguousarray(cache[:, :, at : at + 16]).reshape(-1).view(np.uint8) for at in range(0, TOKENS, 16)]


def in_another_process(work: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise Absent(f"the process that stores ended with {process.exitcode}")


class Store(ABC):
    """What is asked of each, in one thread. Arrays are valid until `release`."""

    id: str
    name: str
    unit: str = "2 MiB block"  # the least that it finds

    def __init__(self) -> None:
        self.closing = contextlib.ExitStack()

    @abstractmethod
    def fill(self) -> None:
        """Has the prefix stored by another process, and gets ready to read."""

    @abstractmethod
    def block(self) -> list[Array]:
        """The first unit, looked up and readable."""

    @abstractmethod
    def prefix(self) -> list[Array]:
        """The whole prefix, looked up and readable; in place if the store can."""

    @abstractmethod
    def copy(self) -> list[Array]:
        """The whole prefix, looked up and copied into memory of this process."""

    @abstractmethod
    def put(self) -> None:
        """Stores as much under a new name."""

    def release(self) -> None:  # noqa: B027 - most hold nothing
        """Lets go of what `prefix` or `block` made readable."""

    def forget(self) -> None:  # noqa: B027 - most evict
        """Takes away what `put` stored, and perhaps all else."""

    def close(self) -> None:
        """However far `fill` came."""
        self.closing.close()


def _store_in_pool(space_name: str) -> None:
    with Space.open(space_name) as space, KVPool(space, LLAMA) as pool:
        stored = pool.put(np.arange(TOKENS) + PREFIX_START, prefix_cache())
        assert stored.declined == 0


class Openshelf(Store):
    id, name = "openshelf", "Openshelf"

    def __init__(self, space_name: str, pool: KVPool) -> None:
        super().__init__()
        self.space_name, self.pool = space_name, pool
        self.tokens = np.arange(TOKENS) + PREFIX_START
        self.cache, self.target = prefix_cache(), private(LLAMA.shape(TOKENS))
        self.firsts = itertools.count(PUT_START, 10_000)
        self.hit: Any = None

    def fill(self) -> None:
        in_another_process(_store_in_pool, self.space_name)

    def block(self) -> list[Array]:
        self.hit = self.pool.match(self.tokens[:16])
        return [self.hit.block(0)]

    def prefix(self) -> list[Array]:
        self.hit = self.pool.match(self.tokens)
        return [self.hit.block(number) for number in range(self.hit.length // 16)]

    def copy(self) -> list[Array]:
        self.hit = self.pool.match(self.tokens)
        self.hit.read(self.target)
        return [self.target]

    def put(self) -> None:
        assert self.pool.put(np.arange(TOKENS) + next(self.firsts), self.cache).stored == BLOCKS

    def release(self) -> None:
        self.hit.release()


def _redis_client(path: str) -> Any:
    return importlib.import_module("redis").Redis(unix_socket_path=path)


def _set_in_redis(client: Any, values: dict[str, memoryview]) -> None:
    pipeline = client.pipeline(transaction=False)
    for key, value in values.items():
        pipeline.set(key, value)
    pipeline.execute()


def _store_in_redis(path: str) -> None:
    blocks = blocks_of(prefix_cache())
    _set_in_redis(_redis_client(path), {f"block{number}": block.data for number, block in enumerate(blocks)})


class Redis(Store):
    """Values of 2 MiB over a Unix socket, replies parsed by hiredis: always a copy.

    GETs one after another and SETs in a pipeline: at this size they are quicker than MGET, MSET and each other's way.
    """

    id, name = "redis", "Redis"

    def __init__(self, home: Path) -> None:
        super().__init__()
        needs("redis", "the redis client")
        self.path = str(home / "redis.sock")
        command = ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", "", "--dir", str(home)]
        self.server = Server(command, lambda: os.path.exists(self.path), home / "redis.log")
        self.closing.callback(self.server.stop)
        self.keys = [f"block{number}" for number in range(BLOCKS)]

    def fill(self) -> None:
        self.server.wait()
        in_another_process(_store_in_redis, self.path)
        self.client = _redis_client(self.path)
        self.values = {f"new{number}": block.data for number, block in enumerate(blocks_of(prefix_cache()))}

    def block(self) -> list[Array]:
        return [np.frombuffer(self.client.get(self.keys[0]), np.uint16)]

    def prefix(self) -> list[Array]:
        return [np.frombuffer(self.client.get(key), np.uint16) for key in self.keys]

    copy = prefix

    def put(self) -> None:
        _set_in_redis(self.client, self.values)
