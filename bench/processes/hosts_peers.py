"""The processes of bench/peers/hosts.py: one peer each, on the host that serves (a) or the one that measures (b).

    hosts_peer_process.py KIND a|b LINE ARGUMENT...

Every `get(nbytes, count)` returns the seconds of single transfers of bytes from memory on host a into memory here, and
looks at the last byte, so that nothing can be left for later.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from openshelf.show.tour import obey

LARGEST = 64 << 20
SEVEN = 7  # what all bytes are
Functions = dict[str, Callable[..., Any]]


def timed_each(get: Callable[[], int], count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        last = get()
        times.append(time.perf_counter() - started)
        if last != SEVEN:
            raise AssertionError(f"the last byte is {last}, expected {SEVEN}")
    return times


def redis(side: str, host: str, port: str) -> Functions:
    client: Any = importlib.import_module("redis").Redis(host=host, port=int(port))

    def put(nbytes: int) -> None:
        client.set(str(nbytes), np.full(nbytes, SEVEN, np.uint8).tobytes())

    def get(nbytes: int, count: int) -> list[float]:
        return timed_each(lambda: np.frombuffer(client.get(str(nbytes)), np.uint8)[-1], count)

    return {"ready": client.ping, "put": put, "get": get}


def gloo(side: str, host: str, port: str) -> Functions:
    """b sends one number, a answers with the bytes: what a get is where both sides must take part."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://{host}:{port}", rank="ab".index(side), world_size=2)
    data = torch.full((LARGEST,), SEVEN if side == "a" else 0, dtype=torch.uint8)
    request = torch.zeros(1, dtype=torch.int64)

    def serve(nbytes: int, count: int) -> None:
        for _ in range(count):
            distributed.recv(request, 1)
            distributed.send(data[:nbytes], 1)

    def once(nbytes: int) -> int:
        distributed.send(request, 0)
        distributed.recv(data[:nbytes], 0)
        return int(data[nbytes - 1])

    def get(nbytes: int, count: int) -> list[float]:
        data[:nbytes] = 0
        return timed_each(lambda: once(nbytes), count)

    return {"ready": lambda: True, "serve": serve, "get": get}


def mpi(side: str) -> Functions:
    """One-sided: b gets from a's window. Open MPI over TCP needs a inside the library meanwhile, so a waits there."""
    importlib.import_module("mpi4py").rc.threads = False  # else Open MPI has no one-sided calls over TCP
    api: Any = importlib.import_module("mpi4py.MPI")
    world = api.COMM_WORLD
    data = np.full(LARGEST, SEVEN if side == "a" else 0, np.uint8)
    window = api.Win.Create(data, comm=world)

    def serve(nbytes: int, count: int) -> None:
        world.recv(source=1)

    def once(nbytes: int) -> int:
        window.Get([data, nbytes, api.BYTE], 0, [0, nbytes, api.BYTE])
        window.Flush(0)
        return int(data[nbytes - 1])

    def get(nbytes: int, count: int) -> list[float]:
        data[:nbytes] = 0
        window.Lock(0, api.LOCK_SHARED)
        try:
            return timed_each(lambda: once(nbytes), count)
        finally:
            window.Unlock(0)
            world.send(None, dest=0)

    return {"ready": lambda: True, "serve": serve, "get": get}


def ray(side: str) -> Functions:
    """Two nodes with an object store each on this machine. An object that has come stays, so each is got once."""
    api: Any = importlib.import_module("ray")
    cluster: Any = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 1 << 30, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=1, resources={"a": 1}, object_store_memory=1 << 30)
    api.init(address=cluster.address, configure_logging=False, log_to_driver=False)

    class Putter:
        def put(self, nbytes: int, count: int) -> list[Any]:
            return [api.put(np.full(nbytes, SEVEN, np.uint8)) for _ in range(count)]

    there = api.remote(resources={"a": 1})(Putter).remote()

    def get(nbytes: int, count: int) -> list[float]:
        refs = iter(api.get(there.put.remote(nbytes, count)))
        return timed_each(lambda: api.get(next(refs))[-1], count)

    def stop() -> None:
        api.shutdown()
        cluster.shutdown()

    return {"ready": lambda: bool(get(8, 1)), "get": get, "stop": stop}


KINDS: dict[str, Callable[..., Functions]] = {"redis": redis, "gloo": gloo, "mpi": mpi, "ray": ray}


def main() -> None:
    kind, side, line, *arguments = sys.argv[1:]
    if kind == "mpi":  # mpirun starts both alike: the rank is the side
        side = "ab"[int(os.environ["OMPI_COMM_WORLD_RANK"])]
        line = f"{line}-{side}"
    obey(line, KINDS[kind](side, *arguments))


if __name__ == "__main__":
    main()
