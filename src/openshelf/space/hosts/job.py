"""The hosts of a job that Slurm or torchrun started, as the environment of its processes says.

Slurm lists the nodes of a job. torchrun does not: each process knows the number of its node, and where the first is. So
the nodes tell their addresses in the store that torchrun itself uses to bring its workers together. Anybody who can
reach that store could tell wrong ones; who has not the key of the hosts file gets no further by that.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple

from openshelf.errors import BadInput, HostLost

DEFAULT_PORT = 7400
_PATIENCE = timedelta(seconds=60)
_MOST_NODES = 4096
_GROUP = re.compile(r"([^\[\],\s]*)(?:\[([0-9,\-]+)\])?([^\[\],\s]*)(?:,|$)")


class Job(NamedTuple):
    """Nodes as HOST:PORT in an order that is the same on all of them, and which of them this one is."""

    hosts: tuple[str, ...]
    own: int


def of_environment(port: int, environment: Mapping[str, str] | None = None) -> Job:
    """The job that this process is of. BadInput if it is of none, or if its variables do not fit each other."""
    given = os.environ if environment is None else environment
    nodes = given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST") or given.get("SLURM_NODELIST")
    launched = "RANK" in given and "WORLD_SIZE" in given
    if nodes and "SLURM_NODEID" in given:
        names = expand(nodes)
        if not launched or _nodes(given) == len(names):
            return _slurm(names, _number(given, "SLURM_NODEID"), port)
    if launched:
        return _launched(given, port)
    raise BadInput(
        "`hosts: job` asks for the nodes of a job, and neither Slurm (SLURM_JOB_NODELIST, SLURM_NODEID) nor torchrun "
        "(RANK, WORLD_SIZE, MASTER_ADDR) started this process; list the hosts in the hosts file"
    )


def _slurm(names: list[str], own: int, port: int) -> Job:
    if own >= len(names):
        raise BadInput(f"SLURM_NODEID is {own}, and the job has {len(names)} nodes: {', '.join(names)}")
    return Job(tuple(f"{name}:{port}" for name in names), own)


def expand(nodes: str) -> list[str]:
    """The names that a list of Slurm's is short for: gpu[01-03,7],login."""
    found: list[str] = []
    at = 0
    while at < len(nodes):
        match = _GROUP.match(nodes, at)
        if not match or match.end() == at or not (match[1] or match[2]):
            raise BadInput(f"{nodes!r} is no list of nodes as Slurm writes it, such as gpu[01-03,7],login")
        at = match.end()
        found += [f"{match[1]}{middle}{match[3]}" for middle in _ranges(match[2])] if match[2] else [match[1]]
        if len(found) > _MOST_NODES:
            raise BadInput(f"{nodes!r} lists more than {_MOST_NODES} nodes")
    if len(set(found)) != len(found):
        raise BadInput(f"{nodes!r} lists a node twice")
    return found


def _ranges(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise BadInput(f"{part!r} is no range of numbers of nodes; expected such as 01-03")
        if int(last or first) - int(first) > _MOST_NODES:
            raise BadInput(f"{part!r} is a range of more than {_MOST_NODES} nodes")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "")
    if not text.isdecimal():
        raise BadInput(f"{name} is {text!r}, expected a number")
    return int(text)


def _nodes(given: Mapping[str, str]) -> int:
    """How many torchrun started workers on."""
    if "GROUP_WORLD_SIZE" in given:
        return max(1, _number(given, "GROUP_WORLD_SIZE"))
    world, here = _number(given, "WORLD_SIZE"), _number(given, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in given else 0
    return world // here if here and world % here == 0 else world


def _launched(given: Mapping[str, str], port: int) -> Job:
    master, nodes = given.get("MASTER_ADDR", ""), _nodes(given)
    if not master:
        raise BadInput("RANK and WORLD_SIZE are set, and MASTER_ADDR is not: it says where the first node is")
    if nodes == 1:
        return Job((_joined(master, port),), 0)
    if given.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise BadInput(
            f"the job has {nodes} nodes, and only torchrun's store says which: without torchrun, list the hosts in the "
            "hosts file"
        )
    run, turn = given.get("TORCHELASTIC_RUN_ID", ""), given.get("TORCHELASTIC_RESTART_COUNT", "0")
    return _met(master, _number(given, "MASTER_PORT"), f"{run}/{turn}", _number(given, "GROUP_RANK"), nodes, port)


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@functools.cache  # what was told once stays so as long as these workers live
def _met(master: str, store_port: int, run: str, own: int, nodes: int, port: int) -> Job:
    address = _own_address(master, store_port)
    if address.startswith("127.") or address == "::1":
        port += own  # all nodes are this machine
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise BadInput(
            "the nodes of a torchrun job are found by torch's store: pip install torch (openshelf[torch])"
        ) from None
    where = f"the store of torchrun at {_joined(master, store_port)}"
    try:
        store = TCPStore(master, store_port, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        store.set(f"openshelf/{run}/{own}", _joined(address, port))
        hosts = tuple(store.get(f"openshelf/{run}/{number}").decode() for number in range(nodes))
    except RuntimeError as error:
        raise HostLost(f"{where} did not name all {nodes} nodes of the job: {str(error).splitlines()[0]}") from None
    if len(set(hosts)) != len(hosts):
        raise BadInput(f"{where} names a node twice: {', '.join(hosts)}; list the hosts in the hosts file")
    return Job(hosts, own)


def _own_address(master: str, port: int) -> str:
    """The address from which this node would call the first one."""
    for family, kind, protocol, _, where in _resolved(master, port):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # of datagrams: nothing is sent
            return str(probe.getsockname()[0])
    raise BadInput(f"MASTER_ADDR is {master!r}, and this node has no way to it")


def _resolved(master: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise BadInput(f"MASTER_ADDR is {master!r}, which is no host: {error.strerror}") from None
    return [(int(family), int(kind), protocol, name, tuple(where)) for family, kind, protocol, name, where in found]
