"""Get and put of 8 B to 64 MiB against what people use: shared_memory, Ray, Redis, memcached, a socket; in one run.

Put: from a numpy array in this process to where another process can find it by name. Get: from the name to a numpy
array in this process, and one load of its first element; "get + read" reads all of it. `make bench-peers` installs the
peers; one that is absent is skipped with the reason. Values are seconds of Openshelf, ratio is the peer's time to ours.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import socket
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from kit.servers import Absent, Server
from kit.side_by_side import Report, Row, arguments, p99
from openshelf import Space
from openshelf.space import format_size

SIZES = (8, 4 << 10, 1 << 20, 64 << 20)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
OPERATIONS = ("put", "get", "get + read")


class Peer(ABC):
    """put(name, array) makes it findable for other processes; get(name) returns an array."""

    name: str

    @abstractmethod
    def put(self, name: str, array: Bytes) -> None: ...

    @abstractmethod
    def get(self, name: str, nbytes: int) -> Bytes: ...

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        pass


class Openshelf(Peer):
    name = "openshelf"

    def __init__(self) -> None:
        self.space = Space.create("peers", dram="1GiB")

    def close(self) -> None:
        self.space.close()
        Space.remove("peers")

    def put(self, name: str, array: Bytes) -> None:
        self.space.put(name, array)

    def get(self, name: str, nbytes: int) -> Bytes:
        return self.space[name].numpy()


class SharedMemory(Peer):
    """One block per array; replacing it means unlinking and making anew, as its size may differ."""

    name = "shared_memory"

    def __init__(self) -> None:
        self.blocks: dict[str, shared_memory.SharedMemory] = {}
        self.opened: shared_memory.SharedMemory | None = None

    def put(self, name: str, array: Bytes) -> None:
        old = self.blocks.pop(name, None)
        if old is not None:
            old.close()
            old.unlink()
        block = shared_memory.SharedMemory(f"osfbench-{os.getpid()}-{name}", create=True, size=array.nbytes)
        np.ndarray(array.shape, array.dtype, block.buf)[:] = array
        self.blocks[name] = block

    def get(self, name: str, nbytes: int) -> Bytes:
        if self.opened is not None:
            with contextlib.suppress(BufferError):
                self.opened.close()
        self.opened = shared_memory.SharedMemory(f"osfbench-{os.getpid()}-{name}")
        return np.ndarray(nbytes, np.uint8, self.opened.buf)

    def close(self) -> None:
        for block in self.blocks.values():
            block.unlink()


class Ray(Peer):
    name = "ray"

    def __init__(self) -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise Absent("ray is not installed") from error
        self.ray.init(
            num_cpus=1,
            object_store_memory=1 << 30,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
        )
        self.refs: dict[str, Any] = {}

    def put(self, name: str, array: Bytes) -> None:
        self.refs[name] = self.ray.put(array)

    def get(self, name: str, nbytes: int) -> Bytes:
        found: Bytes = self.ray.get(self.refs[name])
        return found

    def close(self) -> None:
        self.ray.shutdown()


class Redis(Peer):
    name = "redis"

    def __init__(self, home: str) -> None:
        try:
            client: Any = importlib.import_module("redis")
        except ImportError as error:
            raise Absent("the redis client is not installed") from error
        path = f"{home}/redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", home]
        self.server = Server(command, lambda: os.path.exists(path), Path(home, "redis.log"))
        self.server.wait()
        self.client = client.Redis(unix_socket_path=path)

    def put(self, name: str, array: Bytes) -> None:
        self.client.set(name, array.data)

    def get(self, name: str, nbytes: int) -> Bytes:
        return np.frombuffer(self.client.get(name), np.uint8)

    def close(self) -> None:
        self.server.stop()


class Memcached(Peer):
    name = "memcached"

    def __init__(self, home: str) -> None:
        try:
            module: Any = importlib.import_module("pymemcache.client.base")
        except ImportError as error:
            raise Absent("pymemcache is not installed") from error
        path = f"{home}/memcached.sock"
        user = ["-u", "root"] if os.getuid() == 0 else []
        command = ["memcached", "-s", path, "-m", "1024", "-I", "128m", *user]
        self.server = Server(command, lambda: os.path.exists(path), Path(home, "memcached.log"))
        self.server.wait()
        self.client = module.Client(path)

    def put(self, name: str, array: Bytes) -> None:
        if not self.client.set(name, array.tobytes(), noreply=False):
            raise Absent("memcached refused the value")

    def get(self, name: str, nbytes: int) -> Bytes:
        return np.frombuffer(self.client.get(name), np.uint8)

    def close(self) -> None:
        self.server.stop()


def _socket_server(path: str) -> None:
    store: dict[str, bytes] = {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    peer, _ = listener.accept()
    stream = peer.makefile("rwb")
    while True:
        try:
            command, name, value = pickle.load(stream)
        except EOFError:
            return
        if command == "put":
            store[name] = value
            pickle.dump(None, stream, protocol=5)
        else:
            stream.write(store[name])
        stream.flush()


class Socket(Peer):
    """A process with a dict behind a Unix socket, arrays pickled."""

    name = "socket + pickle"

    def __init__(self, home: str) -> None:
        path = f"{home}/dict.sock"
        self.process = multiprocessing.get_context("spawn").Process(target=_socket_server, args=(path,), daemon=True)
        self.process.start()
        while not os.path.exists(path):
            time.sleep(0.01)
        time.sleep(0.05)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.stream = self.socket.makefile("rwb")

    def put(self, name: str, array: Bytes) -> None:
        pickle.dump(("put", name, pickle.dumps(array, protocol=5)), self.stream, protocol=5)
        self.stream.flush()
        pickle.load(self.stream)

    def get(self, name: str, nbytes: int) -> Bytes:
        pickle.dump(("get", name, None), self.stream, protocol=5)
        self.stream.flush()
        found: Bytes = pickle.load(self.stream)
        return found

    def close(self) -> None:
        self.stream.close()
        self.socket.close()
        self.process.join(2)
        self.process.kill()


@contextlib.contextmanager
def own_directory(home: str) -> Iterator[None]:
    """Openshelf's spaces go with the benchmark's other files."""
    os.environ["OPENSHELF_DIR"] = home
    yield


@contextlib.contextmanager
def peers(home: str) -> Iterator[tuple[list[Peer], dict[str, str]]]:
    present: list[Peer] = []
    absent: dict[str, str] = {}
    makers: list[tuple[str, Callable[[], Peer]]] = [
        ("openshelf", Openshelf),
        ("shared_memory", SharedMemory),
        ("ray", Ray),
        ("redis", lambda: Redis(home)),
        ("memcached", lambda: Memcached(home)),
        ("socket + pickle", lambda: Socket(home)),
    ]
    try:
        for name, make in makers:
            try:
                present.append(make())
            except Absent as reason:
                absent[name] = str(reason)
        yield present, absent
    finally:
        for peer in present:
            peer.close()


def operation_on(peer: Peer, operation: str, source: Bytes) -> Callable[[], object]:
    nbytes = source.nbytes
    if operation == "put":
        return lambda: peer.put("x", source)
    if operation == "get":
        return lambda: peer.get("x", nbytes)[0]
    return lambda: peer.get("x", nbytes).max()


def measure(work: Callable[[], object], budget_s: float) -> list[float]:
    """Seconds of single calls, as many as fit the budget, at least three."""
    times: list[float] = []
    end = time.perf_counter() + budget_s
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 20_000):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return times


def main() -> None:
    args = arguments(__doc__ or "")
    rounds, budget = (3, 0.03) if args.quick else (7, 0.15)
    report = Report("Get and put against peers")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home,
        own_directory(home),
        peers(home) as (present, absent),
    ):
        for nbytes in track(SIZES, "sizes"):
            source = np.full(nbytes, 7, np.uint8)
            for operation in OPERATIONS:
                times: dict[str, list[list[float]]] = {peer.name: [] for peer in present}
                again: list[list[float]] = []
                for _ in range(rounds):
                    for peer in present:
                        times[peer.name].append(measure(operation_on(peer, operation, source), budget))
                    again.append(measure(operation_on(present[0], operation, source), budget))
                add_rows(report, f"{operation} {format_size(nbytes)}", times, again, absent)
    report.finish(args.json)


def add_rows(
    report: Report, case: str, times: dict[str, list[list[float]]], again: list[list[float]], absent: dict[str, str]
) -> None:
    def best(runs: list[list[float]]) -> float:
        return min(statistics.median(run) for run in runs)

    ours = times["openshelf"]
    mine = min(best(ours), best(again))
    everything = [value for run in ours for value in run]
    for name in ("shared_memory", "ray", "redis", "memcached", "socket + pickle"):
        id = f"peers.{case.replace(' ', '')}.{name.split()[0]}"
        if name in absent:
            report.add(Row(id, case, None, "s", name, None, None, note=f"skipped: {absent[name]}"))
            continue
        ratio = best(times[name]) / mine
        note = "" if ratio >= 1 else why_behind(case, name)
        report.add(
            Row(id, case, mine, "s", name, ratio, best(again) / best(ours), statistics.median(everything),
                p99(everything), ">= 1", note)
        )  # fmt: skip


def why_behind(case: str, name: str) -> str:
    """What is known about rows where the peer is ahead."""
    if case.startswith("get + read"):
        return "both read the same bytes from memory or cache; equal within the noise"
    return "behind"


if __name__ == "__main__":
    main()
