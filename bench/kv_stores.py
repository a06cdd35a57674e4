"""The stores of bench/kv_peers.py: one prefix that another process stored, had in this one.

Each is used in its quickest way that its documentation has, on loopback and in host memory. The keys of Redis and
Mooncake are made beforehand; ours and LMCache's are hashed from tokens in the time that is taken. LMCache is in
kv_lmcache.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import mmap
import multiprocessing
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import KVPool, Layout, Space
from peers import Absent, Server, free_port, listens, needs

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
        pass

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


HOT_CACHE = {
    "MC_STORE_LOCAL_HOT_CACHE_SIZE": str(2 * BLOCKS * BLOCK_NBYTES),
    "MC_STORE_LOCAL_HOT_BLOCK_SIZE": str(BLOCK_NBYTES),
    "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1",
    "MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD": "1",
}


class MooncakeNode:
    """A master, and the client process of this host that has the memory.

    `hot`: with what Mooncake calls a local hot cache, which is off unless asked for: blocks that were read are also
    copied to where processes of this host map them, and not copied when they are read again.
    """

    def __init__(self, home: Path, *, hot: bool = False) -> None:
        needs("mooncake", "mooncake-transfer-engine-non-cuda")
        self.master_port, self.port = free_port(), free_port()
        bin = Path(sys.executable).parent
        with contextlib.ExitStack() as closing:
            master = Server(
                [str(bin / "mooncake_master"), "--rpc_address=127.0.0.1", f"--rpc_port={self.master_port}",
                 f"--metrics_port={free_port()}", "--enable_metric_reporting=false"],
                listens(self.master_port), home / f"mooncake_master{hot}.log",
            )  # fmt: skip
            closing.callback(master.stop)
            master.wait()
            client = Server(
                [str(bin / "mooncake_client"), "--host=127.0.0.1", f"--port={self.port}", "--protocol=tcp",
                 "--metadata_server=P2PHANDSHAKE", f"--master_server_address=127.0.0.1:{self.master_port}",
                 "--global_segment_size=1GB"],
                listens(self.port), home / f"mooncake_client{hot}.log",
                HOT_CACHE if hot else {},
            )  # fmt: skip
            closing.callback(client.stop)
            client.wait()
            self.close = closing.pop_all().close


def _tcp_client(master_port: str) -> Any:
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    status = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", 0, 3 * BLOCKS * BLOCK_NBYTES, "tcp", "", f"127.0.0.1:{master_port}"
    )
    if status != 0:
        raise Absent(f"Mooncake's client did not start: {status}")
    return store


def _store_in_mooncake(master_port: str) -> None:
    store = _tcp_client(master_port)
    for number, block in enumerate(blocks_of(prefix_cache())):
        assert store.put(f"block{number}", block.data) == 0
    store.close()


class Mooncake(Store):
    """Its client for processes of one host: memory shared with the host's client process, no socket for the bytes.

    That process copies each block into the buffer of who asks; get_buffer, which allocates one, takes longer.
    """

    id, name = "mooncake", "Mooncake, shared memory"

    def __init__(self, node: MooncakeNode) -> None:
        super().__init__()
        self.node = node
        self.keys = [f"block{number}" for number in range(BLOCKS)]
        self.sizes = [BLOCK_NBYTES] * BLOCKS

    def connect(self) -> int:
        """Sets self.store, and returns the address of memory that it may write."""
        os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
        self.store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
        status = self.store.setup_dummy(
            2 * BLOCKS * BLOCK_NBYTES, 2 * BLOCKS * BLOCK_NBYTES, f"127.0.0.1:{self.node.port}"
        )
        if status != 0:
            raise Absent(f"Mooncake's shared-memory client did not start: {status}")
        address: int = self.store.alloc_from_mem_pool(BLOCKS * BLOCK_NBYTES)
        return address

    def fill(self) -> None:
        in_another_process(_store_in_mooncake, self.node.master_port)
        address = self.connect()
        self.closing.callback(self.store.close)
        self.target = _memory_at(address, BLOCKS * BLOCK_NBYTES)
        self.target[:] = 0
        self.addresses = [address + number * BLOCK_NBYTES for number in range(BLOCKS)]
        if self.store.register_buffer(address, BLOCKS * BLOCK_NBYTES) != 0:
            raise Absent("Mooncake registered no buffer")

    def block(self) -> list[Array]:
        assert self.store.get_into(self.keys[0], self.addresses[0], BLOCK_NBYTES) == BLOCK_NBYTES
        return [self.target[: BLOCK_NBYTES // 2]]

    def prefix(self) -> list[Array]:
        return self.copy()

    def copy(self) -> list[Array]:
        assert self.store.batch_get_into(self.keys, self.addresses, self.sizes) == self.sizes
        return [self.target]

    def put(self) -> None:
        keys = [f"{self.id}{key}" for key in self.keys]
        assert not any(self.store.batch_put_from(keys, self.addresses, self.sizes))

    def forget(self) -> None:
        self.store.remove_by_regex(f"^{self.id}", True)


class MooncakeTcp(Mooncake):
    """Its client for processes of any host: bytes over TCP into a registered buffer, here over loopback."""

    id, name = "mooncake_tcp", "Mooncake, TCP"

    def connect(self) -> int:
        self.store = _tcp_client(self.node.master_port)
        self.own = private((BLOCKS * BLOCK_NBYTES // 2,))
        return int(self.own.ctypes.data)


class MooncakeHot(Mooncake):
    """The shared-memory client of a node with a hot cache, of blocks that were read before: in place."""

    id, name = "mooncake_hot", "Mooncake, hot cache"

    def block(self) -> list[Array]:
        return [np.frombuffer(self.store.get_buffer(self.keys[0]), np.uint16)]

    def prefix(self) -> list[Array]:
        return [np.frombuffer(buffer, np.uint16) for buffer in self.store.batch_get_buffer(self.keys)]


def _memory_at(address: int, nbytes: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint16 * (nbytes // 2)).from_address(address))
