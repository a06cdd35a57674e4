"""One keeper on each node of a Ray cluster, held by an actor there."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from openshelf.adapters.ray.extra import ray, strategies
from openshelf.errors import BadInput, UnknownName
from openshelf.space import Space, new_hosts_file

DEFAULT_PORT = 7400
_PAUSE_S = 0.1  # between two keepers of a node
_END_S = 20.0
# As `openshelf keeper` does it, in a process that becomes the keeper.
_KEEPER = """
import sys
from openshelf.space import make_part, read_hosts, run_keeper
file, own, space, contribute = sys.argv[1:]
listed = read_hosts(file)
make_part(space, contribute or None, listed, int(own))
run_keeper(listed, int(own))
"""


class Node(NamedTuple):
    """A node of the cluster as a host of the space."""

    node_id: str
    host: str
    file: str  # of the hosts, on that node


class Keepers:
    """The keepers of one space. May be sent to tasks and actors; any of them may open the space."""

    def __init__(self, space: str, nodes: list[Node], actors: list[Any]) -> None:
        self.space, self.nodes, self._actors = space, nodes, actors

    @property
    def hosts(self) -> list[str]:
        """HOST:PORT of each, in the order of their numbers."""
        return [node.host for node in self.nodes]

    def open(self, mode: str = "rw") -> Space:
        """The space, as the node sees it that this process runs on."""
        here = ray.get_runtime_context().get_node_id()
        for node in self.nodes:
            if node.node_id == here:
                return Space.open(f"openshelf://{node.host}/{self.space}", mode, hosts=node.file)
        raise UnknownName(
            f"the node {here} has no keeper of the space {self.space!r}: it came to the cluster after the keepers "
            "were started; stop() them and start them again"
        )

    def stop(self, remove: bool = False) -> None:
        """Ends the keepers; `remove`: and takes the space away on every node, with its arrays."""
        ray.get([actor.stop.remote(remove) for actor in self._actors])
        for actor in self._actors:
            ray.kill(actor)


class _Keeper:
    """On one node: starts the keeper, and the next one when that was killed."""

    def __init__(self, space: str, hosts: list[str], own: int, key: bytes, contribute: str) -> None:
        self._space, self._url = space, f"openshelf://{hosts[own]}/{space}"
        self._place = tempfile.mkdtemp(prefix="openshelf-ray-")
        self.file = str(new_hosts_file(Path(self._place) / "hosts.yaml", hosts, key=key).path)
        self._command = [sys.executable, "-c", _KEEPER, self.file, str(own), space, contribute]
        self._over = threading.Event()
        self._gate = threading.Lock()
        self._process = self._start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _watch(self) -> None:
        while not self._over.is_set():
            self._process.wait()
            with self._gate:
                if not self._over.wait(_PAUSE_S):
                    self._process = self._start()

    def ready(self) -> str:
        """Where the hosts file is, once the space can be opened here."""
        Space.open(self._url, hosts=self.file).close()
        return self.file

    def pid(self) -> int:
        return self._process.pid

    def stop(self, remove: bool) -> None:
        self._over.set()
        with self._gate, contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        self._process.wait(_END_S)
        if remove:
            Space.remove(self._url, hosts=self.file)
        shutil.rmtree(self._place)


def start_keepers(
    space: str, contribute: str | int, *, port: int = DEFAULT_PORT, nodes: list[str] | None = None
) -> Keepers:
    """Starts a keeper on each node of the cluster that ray.init() has joined, or on `nodes` (by id); waits for them.

    Each gives `contribute` bytes to the space, and listens at its node's address on `port` (several nodes on one
    machine: and the ports after it). A new key is sent to the nodes by Ray: whoever can read Ray's own traffic or
    memory can use it. Nodes that come later have no keeper.
    """
    if not ray.is_initialized():
        raise BadInput("there is no Ray cluster: ray.init() first, with the address of one that runs")
    alive = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}
    chosen = sorted(alive) if nodes is None else nodes
    if unknown := [each for each in chosen if each not in alive]:
        raise UnknownName(f"the cluster has no node {', '.join(unknown)} that is alive")
    hosts, taken = [], dict.fromkeys(alive.values(), port)
    for each in chosen:
        address = alive[each]
        hosts.append(f"[{address}]:{taken[address]}" if ":" in address else f"{address}:{taken[address]}")
        taken[address] += 1
    key, actor = secrets.token_bytes(32), ray.remote(_Keeper)
    actors = [
        actor.options(
            num_cpus=0,
            max_concurrency=2,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node_id=each, soft=False),
        ).remote(space, hosts, own, key, str(contribute))
        for own, each in enumerate(chosen)
    ]
    files = ray.get([each.ready.remote() for each in actors])
    return Keepers(space, [Node(*each) for each in zip(chosen, hosts, files, strict=True)], actors)
