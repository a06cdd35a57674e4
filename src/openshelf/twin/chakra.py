"""Chakra execution traces (`.et`, MLCommons): one rank's operators and collectives, replicated over all ranks.

One trace stands for every rank: all do the same at the same time, so a collective takes what the twin finds for it, and
one rank's graph tells the time of all. Computing takes the node's measured duration, or, where it has none, its
operations and bytes at the rates given (the slower of the two). Computing, communication and memory are a stream each:
one at a time, in the order in which they become ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from openshelf.errors import BadInput
from openshelf.twin.protobuf import double, fields, messages, signed, varints
from openshelf.twin.tasks import COMPUTE, FLOW, MEMORY

if TYPE_CHECKING:
    from openshelf.twin.run import Run
    from openshelf.twin.twin import Twin

_TYPES = {1: "metadata", 2: "load", 3: "store", 4: "compute", 5: "send", 6: "recv", 7: "collective"}
_COLLECTIVES = {0: "all_reduce", 2: "all_gather", 5: "broadcast", 6: "all_to_all", 7: "reduce_scatter", 9: "barrier"}
_COMPUTING, _TALKING, _MEMORY = 0, 1, 2  # streams
_INTEGERS = (7, 9, 11, 13, 27)  # int32, int64, uint32, uint64, bool: all varints


@dataclass
class Node:
    """One node of a trace; `attributes` has what Chakra calls attr, by name."""

    id: int = 0
    name: str = ""
    type: str = "invalid"
    before: list[int] = field(default_factory=list)
    duration_s: float = 0.0
    attributes: dict[str, int | float | list[int]] = field(default_factory=dict)

    def number(self, name: str) -> float:
        value = self.attributes.get(name, 0)
        return float(value) if isinstance(value, int | float) else 0.0


def read_trace(path: str | Path) -> list[Node]:
    """The nodes of a trace, in the file's order; raises BadInput if it is none."""
    file = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the trace {file!r}: {error.strerror}") from error
    nodes = [_node(message, file) for number, message in enumerate(messages(data, file)) if number]
    if not nodes:
        raise BadInput(f"{file}: no nodes. Expected a Chakra trace: metadata, then a message for each node")
    known = {node.id for node in nodes}
    if len(known) != len(nodes):
        raise BadInput(f"{file}: {len(nodes) - len(known)} nodes have the number of another one")
    for node in nodes:
        for other in node.before:
            if other not in known:
                raise BadInput(f"{file}: node {node.id} ({node.name!r}) waits for {other}, which is not in the trace")
    return nodes


def run_trace(
    twin: Twin,
    nodes: list[Node],
    *,
    flop_per_s: float = 0.0,
    memory_bytes_per_s: float = 0.0,
    algorithm: str = "best",
) -> Run:
    """Runs one rank's trace as that of all ranks."""
    tasks = twin.tasks()
    made: dict[int, int] = {}
    sends: dict[tuple[float, float], list[int]] = {}
    for node in nodes:
        seconds, stream, kind = _task(twin, node, flop_per_s, memory_bytes_per_s, algorithm)
        made[node.id] = tasks.lasting(seconds, stream=stream, name=node.name or f"{node.type} {node.id}", kind=kind)
        if node.type == "send":
            sends.setdefault((node.number("comm_tag"), node.number("comm_size")), []).append(made[node.id])
    for node in nodes:
        tasks.link([made[other] for other in node.before], [made[node.id]] * len(node.before))
        if node.type == "recv":
            tasks.link([_matching(node, sends)], [made[node.id]])
    return twin.run(tasks)


def _matching(node: Node, sends: dict[tuple[float, float], list[int]]) -> int:
    """All ranks do the same, so what a rank receives was sent when it sent the like."""
    like = sends.get((node.number("comm_tag"), node.number("comm_size")))
    if not like:
        raise BadInput(
            f"node {node.id} ({node.name!r}) receives what no node sends: one trace stands for all ranks here, so a "
            "recv needs a send of the same tag and size in it"
        )
    return like.pop(0)


def _task(
    twin: Twin, node: Node, flop_per_s: float, memory_bytes_per_s: float, algorithm: str
) -> tuple[float, int, int]:
    """(seconds, stream, kind) of a node."""
    size = node.number("comm_size")
    if node.type == "collective":
        return _collective_s(twin, node, size, algorithm), _TALKING, FLOW
    if node.type == "send":
        src, dst = int(node.number("comm_src")), int(node.number("comm_dst"))
        return twin.send(src, dst, size), _TALKING, FLOW
    if node.type == "recv":
        return 0.0, -1, FLOW
    if node.type in ("load", "store"):
        nbytes = node.number("tensor_size")
        return node.duration_s or _at(nbytes, memory_bytes_per_s, node, "--memory-bandwidth"), _MEMORY, MEMORY
    if node.type == "compute" and not node.duration_s:
        operations, nbytes = node.number("num_ops"), node.number("tensor_size")
        seconds = _at(operations, flop_per_s, node, "--flops")
        if memory_bytes_per_s:
            seconds = max(seconds, nbytes / memory_bytes_per_s)
        return seconds, _COMPUTING, COMPUTE
    return node.duration_s, _COMPUTING if node.type == "compute" else -1, COMPUTE


def _at(amount: float, rate: float, node: Node, option: str) -> float:
    if amount and not rate:
        raise BadInput(f"node {node.id} ({node.name!r}) has no duration: give a rate for its {amount:g} ({option})")
    return amount / rate if amount else 0.0


def _collective_s(twin: Twin, node: Node, size: float, algorithm: str) -> float:
    kind = _COLLECTIVES.get(int(node.number("comm_type")))
    if kind is None:
        known = ", ".join(f"{number} ({name})" for number, name in _COLLECTIVES.items())
        raise BadInput(f"node {node.id} ({node.name!r}): collective {node.number('comm_type'):g}; there is {known}")
    if kind == "barrier":
        kind, size = "all_reduce", 8.0
    involved = node.attributes.get("involved_dim")
    dimension = None
    if isinstance(involved, list) and not all(involved):
        if sum(involved) != 1:
            raise BadInput(f"node {node.id} ({node.name!r}): expected one dimension or all of them; {involved} came")
        dimension = involved.index(1)
    return twin.collective(kind, size, algorithm=algorithm, dimension=dimension).seconds if size else 0.0


def _node(data: bytes, file: str) -> Node:
    node = Node()
    for number, value in fields(data, file):
        if number in (1, 3, 7) and isinstance(value, int):
            if number == 1:
                node.id = value
            elif number == 3:
                node.type = _TYPES.get(value, f"type {value}")
            else:
                node.duration_s = value * 1e-6
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode("utf-8", "replace")
        elif number in (4, 5):
            node.before += varints(value, file)
        elif number == 10 and isinstance(value, bytes):
            _attribute(node, value, file)
    if node.type not in _TYPES.values():
        raise BadInput(
            f"{file}: node {node.id} ({node.name!r}) is of {node.type}; expected {', '.join(_TYPES.values())}"
        )
    return node


def _attribute(node: Node, data: bytes, file: str) -> None:
    name = ""
    for number, value in fields(data, file):
        if number == 1 and isinstance(value, bytes):
            name = value.decode("utf-8", "replace")
        elif number in _INTEGERS and isinstance(value, int):
            node.attributes[name] = signed(value)
        elif number in (3, 5) and isinstance(value, bytes):
            node.attributes[name] = double(value)
        elif number == 28 and isinstance(value, bytes):
            node.attributes[name] = _bools(value, file)


def _bools(data: bytes, file: str) -> list[int]:
    found: list[int] = []
    for number, value in fields(data, file):
        if number == 1:
            found += varints(value, file)
    return found
