"""Mooncake Store beside the other stores: its clients for one host and for any, and its hot cache.

A client process of the host has the memory, a master knows what is where, the transport is TCP on loopback.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kit.servers import Absent, Server, free_port, listens, needs
from peers.kv_stores import BLOCK_NBYTES, BLOCKS, Array, Store, blocks_of, in_another_process, prefix_cache, private

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
        bin, name = Path(sys.executable).parent, "mooncake_hot" if hot else "mooncake"
        with contextlib.ExitStack() as closing:
            master = Server(
                [str(bin / "mooncake_master"), "--rpc_address=127.0.0.1", f"--rpc_port={self.master_port}",
                 f"--metrics_port={free_port()}", "--enable_metric_reporting=false"],
                listens(self.master_port), home / f"{name}_master.log",
            )  # fmt: skip
            closing.callback(master.stop)
            master.wait()
            client = Server(
                [str(bin / "mooncake_client"), "--host=127.0.0.1", f"--port={self.port}", "--protocol=tcp",
                 "--metadata_server=P2PHANDSHAKE", f"--master_server_address=127.0.0.1:{self.master_port}",
                 "--global_segment_size=1GB"],
                listens(self.port), home / f"{name}_client.log",
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
