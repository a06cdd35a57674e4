"""LMCache beside the other stores: its multi-process mode with shared memory, and its backend within one process.

Both on a CPU, in chunks of 256 tokens: its default, and its quickest. The multi-process mode is a server that finds and
holds chunks in a shared-memory pool, asked over ZeroMQ; workers map the pool, and read the chunks in place (what its
"engine-driven" transfer then copies from; "lmcache-driven", where the server copies, takes twenty times as long on a
CPU). The parts that are called are not its public API: kv.txt says which version this is for.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kit.servers import Server, free_port, listens, needs
from peers.kv_stores import BLOCKS, PREFIX_START, PUT_START, TOKENS, Array, Store, in_another_process, prefix_cache

CHUNK = 256
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_LOG_LEVEL": "ERROR"}
SECONDS = 30.0  # that anything may take


def torch_of_one_thread() -> Any:
    """As ours copies. Two that wait for each other take eight times as long when the machine has other work."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return torch


class Worker:
    """A process of an engine, as LMCache sees it: with a paged cache of 32 layers, registered with the server."""

    def __init__(self, port: str, cache: Array) -> None:
        os.environ.update(QUIET)
        torch = torch_of_one_thread()
        self.key_type = importlib.import_module("lmcache.v1.multiprocess.custom_types").IPCCacheServerKey
        factory = importlib.import_module("lmcache.v1.multiprocess.transport.factory").RequestClientFactory
        transfer = importlib.import_module("lmcache.v1.multiprocess.transfer_context.worker_transfer")
        self.client = factory.create(f"tcp://127.0.0.1:{port}")
        pages = [layer.reshape(2, BLOCKS, 16, 8, 128) for layer in cache]
        self.pages = {f"layer{number}": torch.from_numpy(layer) for number, layer in enumerate(pages)}
        self.table = [list(range(BLOCKS))]
        self.transfer = transfer.create_transfer_context(self.pages, instance_id=os.getpid(), req_client=self.client)
        self.transfer.register(self.pages, "llama", 1, CHUNK // 16, SECONDS, layout_hints={"kv_layout": "NHD"})

    def key(self, request: str, tokens: tuple[int, ...], worker: int | None = 0) -> Any:
        return self.key_type(
            model_name="llama", world_size=1, worker_id=worker, token_ids=tokens, start=0, end=len(tokens),
            request_id=request, num_kv_readers=1,
        )  # fmt: skip

    def store(self, request: str, tokens: tuple[int, ...]) -> None:
        event = self.transfer.create_recorded_event()
        future = self.transfer.submit_store(
            request, self.key(request, tokens), self.pages, self.table, event, CHUNK // 16
        )
        assert future.result(timeout=SECONDS)

    def look_up(self, request: str, tokens: tuple[int, ...]) -> None:
        self.client.lookup(self.key(request, tokens, None), 1).result(timeout=SECONDS)
        found = self.client.wait_prefetch_status(request, SECONDS).result(timeout=SECONDS)
        assert found * CHUNK == len(tokens)

    def end(self, request: str) -> None:
        self.client.end_session(request).result(timeout=SECONDS)

    def close(self) -> None:
        future = self.transfer.unregister()
        if future is not None:
            future.result(timeout=SECONDS)
        self.transfer.close()
        self.client.close()


def _store_in_server(port: str, tokens: tuple[int, ...]) -> None:
    worker = Worker(port, prefix_cache())
    worker.store("fill", tokens)
    worker.end("fill")
    worker.client.close()  # registered it stays, as an engine does that runs


class LMCacheServer(Store):
    id, name = "lmcache_mp", "LMCache, multi-process"
    unit = "chunk of 256 tokens"

    def __init__(self, home: Path) -> None:
        super().__init__()
        needs("lmcache", "lmcache")
        self.port = free_port()
        command = [
            sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", "127.0.0.1", "--port", self.port,
            "--chunk-size", str(CHUNK), "--supported-transfer-mode", "engine_driven",
            "--shm-name", f"openshelf-bench-{self.port}", "--l1-size-gb", "1", "--eviction-policy", "LRU",
            "--disable-observability",
        ]  # fmt: skip
        self.server = Server(command, listens(self.port), home / "lmcache.log", QUIET)
        self.closing.callback(self.server.stop)
        self.tokens = tuple(range(PREFIX_START, PREFIX_START + TOKENS))
        self.numbers = itertools.count(1)
        self.request, self.held = "", None

    def fill(self) -> None:
        self.server.wait()
        in_another_process(_store_in_server, self.port, self.tokens)
        self.worker = Worker(self.port, prefix_cache())
        self.closing.callback(self.worker.close)
        for pages in self.worker.pages.values():
            pages.zero_()  # what is read into them must come from the server

    def found(self, tokens: tuple[int, ...]) -> list[Array]:
        self.request = f"get{next(self.numbers)}"
        self.worker.look_up(self.request, tokens)
        self.held = self.worker.key(self.request, tokens)
        chunks = self.worker.transfer.engine_driven_context.prepare_retrieve(self.held, os.getpid())
        return [chunk.numpy() for chunk in chunks]

    def block(self) -> list[Array]:
        return self.found(self.tokens[:CHUNK])

    def prefix(self) -> list[Array]:
        return self.found(self.tokens)

    def copy(self) -> list[Array]:
        self.request = f"get{next(self.numbers)}"
        worker = self.worker
        worker.look_up(self.request, self.tokens)
        key, event = worker.key(self.request, self.tokens), worker.transfer.create_recorded_event()
        future = worker.transfer.submit_retrieve(self.request, key, worker.pages, worker.table, event, CHUNK // 16)
        assert future.result(timeout=SECONDS)
        return [pages.numpy() for pages in worker.pages.values()]

    def put(self) -> None:
        first = PUT_START + next(self.numbers) * 10_000
        self.request = f"put{first}"
        self.worker.store(self.request, tuple(range(first, first + TOKENS)))

    def release(self) -> None:
        if self.held is not None:
            self.worker.transfer.engine_driven_context.commit_retrieve(self.held, os.getpid())
            self.held = None
        self.worker.end(self.request)

    def forget(self) -> None:
        self.worker.end(self.request)
        self.worker.client.clear(True).result(timeout=SECONDS)


class Connector:
    """What LMCache calls a GPU connector, where there is no GPU: hands out the chunks, or copies them."""

    def __init__(self, source: Any, target: Any) -> None:
        self.source, self.target = source, target
        self.copies = False
        self.chunks: list[Any] = []

    def get_shape(self, tokens: int) -> Any:
        return self.source[:, :, :tokens].shape

    def initialize_kvcaches_ptr(self, **_: object) -> None:
        pass

    def batched_from_gpu(self, chunks: list[Any], starts: list[int], ends: list[int], **_: object) -> None:
        for chunk, start, end in zip(chunks, starts, ends, strict=True):
            chunk.tensor.copy_(self.source[:, :, start:end])

    def batched_to_gpu(self, chunks: list[Any], starts: list[int], ends: list[int], **_: object) -> None:
        if self.copies:
            for chunk, start, end in zip(chunks, starts, ends, strict=True):
                self.target[:, :, start:end].copy_(chunk.tensor)
        self.chunks = [chunk.tensor for chunk in chunks]


class LMCacheLocal(Store):
    """Its backend in CPU memory. Other processes do not see it: this one stored what it gets."""

    id, name = "lmcache_local", "LMCache, within one process"
    unit = "chunk of 256 tokens"

    def __init__(self) -> None:
        super().__init__()
        needs("lmcache", "lmcache")
        self.firsts = itertools.count(PUT_START, 10_000)

    def fill(self) -> None:
        os.environ.update(QUIET)
        self.torch = torch_of_one_thread()
        builder = importlib.import_module("lmcache.v1.cache_engine").LMCacheEngineBuilder
        config = importlib.import_module("lmcache.v1.config").LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK, local_cpu=True, max_local_cpu_size=1.0
        )
        metadata = importlib.import_module("lmcache.v1.metadata").LMCacheMetadata(
            model_name="llama", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
            kv_dtype=self.torch.float16, kv_shape=(32, 2, CHUNK, 8, 128),
        )  # fmt: skip
        planes = np.ascontiguousarray(prefix_cache().swapaxes(0, 1)).reshape(2, 32, TOKENS, 1024)
        source = self.torch.from_numpy(planes)
        self.connector = Connector(source, self.torch.zeros_like(source))
        self.engine = builder.get_or_create(
            "bench", config, metadata, self.connector, lambda tensor, rank: None, lambda value, rank: value
        )
        self.closing.callback(builder.destroy, "bench")
        self.engine.post_init()
        self.tokens = self.torch.arange(PREFIX_START, PREFIX_START + TOKENS)
        self.slots = self.torch.arange(TOKENS)
        self.engine.store(self.tokens, kvcaches=[], slot_mapping=self.slots)

    def found(self, tokens: int) -> list[Array]:
        wanted = self.tokens[:tokens]
        assert self.engine.lookup(wanted) == tokens
        self.engine.retrieve(wanted, kvcaches=[], slot_mapping=self.slots[:tokens])
        return [chunk.numpy() for chunk in self.connector.chunks]

    def block(self) -> list[Array]:
        return self.found(CHUNK)

    def prefix(self) -> list[Array]:
        return self.found(TOKENS)

    def copy(self) -> list[Array]:
        self.connector.copies = True
        self.found(TOKENS)
        self.connector.copies = False
        return [self.connector.target.numpy()]

    def put(self) -> None:
        first = next(self.firsts)
        self.engine.store(self.torch.arange(first, first + TOKENS), kvcaches=[], slot_mapping=self.slots)

    def release(self) -> None:
        self.connector.chunks = []
