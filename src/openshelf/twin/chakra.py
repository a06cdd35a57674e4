"""Chakra execution traces (`.et`, MLCommons): one rank's operators and collectives, replicated over all ranks.

One trace stands for every rank: all do the same at the same time, so a collective takes what the twin finds for it, and
one rank's graph tells the time of all. Computing takes the node's measured duration, or, where it has none, its
operations and bytes at the rates given (the slower of the two). Computing, communication and memory are a stream each:
one at a time, in the order in which they become ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf._texts import json_of
from openshelf.errors import BadInput
from openshelf.twin.protobuf import double, fields, fixed, messages, signed, varints, zigzag
from openshelf.twin.tasks import COMPUTE, FLOW, MEMORY

if TYPE_CHECKING:
    from openshelf.twin.run import Run
    from openshelf.twin.twin import Twin

_TYPES = {1: "metadata", 2: "load", 3: "store", 4: "compute", 5: "send", 6: "recv", 7: "collective"}
_COLLECTIVES = {
    0: "all_reduce", 2: "all_gather", 5: "broadcast", 6: "all_to_all", 7: "reduce_scatter", 8: "reduce_scatter",
    9: "barrier",
}  # fmt: skip
_COMPUTING, _TALKING, _MEMORY = 0, 1, 2  # streams


@dataclass
class Node:
    """One node of a trace; `attributes` has what Chakra calls attr, by name."""

    id: int = 0
    name: str = ""
    type: str = "invalid"
    before: list[int] = field(default_factory=list)
    duration_s: float = 0.0
    attributes: dict[str, Any] = field(default_factory=dict)
    outside: list[int] = field(default_factory=list)
    """What it waits for that is not in the file: taken as done."""

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
        node.outside = [other for other in node.before if other not in known]
        node.before = [other for other in node.before if other in known]
    return nodes


def read_groups(path: str | Path) -> dict[str, list[int]]:
    """Process groups by name, from a JSON file such as ASTRA-sim's: {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]}."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read the groups {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    found = json_of(text, str(path))
    good = isinstance(found, dict) and all(
        isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) for ranks in found.values()
    )
    if not good:
        raise BadInput(f'{path}: expected lists of ranks by the name of their group: {{"0": [0, 1], "1": [2, 3]}}')
    return {str(name): ranks for name, ranks in found.items()}


def run_trace(
    twin: Twin,
    nodes: list[Node],
    *,
    flop_per_s: float = 0.0,
    memory_bytes_per_s: float = 0.0,
    algorithm: str = "best",
    groups: Mapping[str, Sequence[int]] | None = None,
) -> Run:
    """Runs one rank's trace as that of all ranks; collectives of a process group are among its ranks."""
    rates = Rates(flop_per_s, memory_bytes_per_s, algorithm, groups or {})
    tasks = twin.tasks()
    made: dict[int, int] = {}
    sends: dict[tuple[float, float], list[int]] = {}
    for node in nodes:
        seconds, stream, kind = _task(twin, node, rates)
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


@dataclass(frozen=True)
class Rates:
    """What a trace does not say: how fast work without a duration is, by what algorithm, and who is in a group."""

    flop_per_s: float = 0.0
    memory_bytes_per_s: float = 0.0
    algorithm: str = "best"
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)


def _task(twin: Twin, node: Node, rates: Rates) -> tuple[float, int, int]:
    """(seconds, stream, kind) of a node, where one trace stands for all ranks."""
    if node.type == "collective":
        found = collective_of(twin, node, rates)
        if found is None:
            return 0.0, _TALKING, FLOW
        kind, size, ranks, dimension = found
        made = twin.collective(kind, size, algorithm=rates.algorithm, ranks=ranks, dimension=dimension)
        return made.seconds, _TALKING, FLOW
    if node.type == "send":
        src, dst = int(node.number("comm_src")), int(node.number("comm_dst"))
        return twin.send(src, dst, node.number("comm_size")), _TALKING, FLOW
    if node.type == "recv":
        return 0.0, -1, FLOW
    return local_work(node, rates)


def local_work(node: Node, rates: Rates) -> tuple[float, int, int]:
    """(seconds, stream, kind) of computing and memory."""
    nbytes = node.number("tensor_size")
    if node.type in ("load", "store"):
        return node.duration_s or _at(nbytes, rates.memory_bytes_per_s, node, "--memory-bandwidth"), _MEMORY, MEMORY
    if node.type == "compute" and not node.duration_s:
        seconds = _at(node.number("num_ops"), rates.flop_per_s, node, "--flops")
        if rates.memory_bytes_per_s:
            seconds = max(seconds, nbytes / rates.memory_bytes_per_s)
        return seconds, _COMPUTING, COMPUTE
    return node.duration_s, _COMPUTING if node.type == "compute" else -1, COMPUTE


def _at(amount: float, rate: float, node: Node, option: str) -> float:
    if amount and not rate:
        raise BadInput(f"node {node.id} ({node.name!r}) has no duration: give a rate for its {amount:g} ({option})")
    return amount / rate if amount else 0.0


def collective_of(twin: Twin, node: Node, rates: Rates) -> tuple[str, float, list[int] | None, int | None] | None:
    """(kind, bytes as the twin counts them, ranks, dimension) of a collective; None if it moves nothing."""
    kind, size = _COLLECTIVES.get(int(node.number("comm_type"))), node.number("comm_size")
    if kind is None:
        known = ", ".join(f"{number} ({name})" for number, name in _COLLECTIVES.items())
        raise BadInput(f"node {node.id} ({node.name!r}): collective {node.number('comm_type'):g}; there is {known}")
    if kind == "barrier":
        kind, size = "all_reduce", 8.0
    ranks, dimension = group_of(node, rates), None
    involved = node.attributes.get("involved_dim")
    if ranks is None and isinstance(involved, list) and not all(involved):
        if sum(involved) != 1:
            raise BadInput(f"node {node.id} ({node.name!r}): expected one dimension or all of them; {involved} came")
        dimension = involved.index(1)
    if kind == "all_gather":  # the schema counts what a rank puts in, the twin what it gets
        whole = len(ranks) if ranks else twin.network.ranks
        size *= twin.network.dimensions[dimension] if dimension is not None else whole
    if not size or (ranks is not None and len(ranks) < 2):
        return None
    return kind, size, ranks, dimension


def group_of(node: Node, rates: Rates) -> list[int] | None:
    """The ranks of a node's process group; None if it names none, which means all."""
    name = node.attributes.get("pg_name", node.attributes.get("comm_group"))
    if name is None or str(name) == "" or (not rates.groups and str(name) == "0"):
        return None
    if str(name) not in rates.groups:
        known = ", ".join(rates.groups) or "(none: give a file of them with --groups)"
        raise BadInput(f"node {node.id} ({node.name!r}) is of the process group {str(name)!r}; there is {known}")
    return list(rates.groups[str(name)])


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
        elif number in _SCALARS:
            node.attributes[name] = _SCALARS[number](value)
        elif number - 1 in _SCALARS and isinstance(value, bytes):
            node.attributes[name] = _list(value, number - 1, file)


def _list(data: bytes, kind: int, file: str) -> list[Any]:
    """The values of a list attribute: packed, or one by one."""
    found: list[Any] = []
    for number, value in fields(data, file):
        if number != 1:
            continue
        width = {3: 8, 5: 4, 19: 4, 21: 8, 23: 4, 25: 8}.get(kind)
        if kind in (29, 31) or isinstance(value, int):
            found.append(_SCALARS[kind](value))
        elif width:
            found += [_SCALARS[kind](value[at : at + width]) for at in range(0, len(value), width)]
        else:
            found += [_SCALARS[kind](each) for each in varints(value, file)]
    return found


def _number(value: Any) -> int:
    return signed(value) if isinstance(value, int) else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_SCALARS: dict[int, Callable[[Any], Any]] = {
    3: double, 5: double, 7: _number, 9: _number, 11: int, 13: int, 15: zigzag, 17: zigzag,
    19: lambda data: fixed(data, False), 21: lambda data: fixed(data, False), 23: lambda data: fixed(data, True),
    25: lambda data: fixed(data, True), 27: int, 29: _text, 31: bytes,
}  # fmt: skip
"""Kinds of attributes by their field: double, float, int32, int64, uint32, uint64, sint32, sint64, fixed32, fixed64,
sfixed32, sfixed64, bool, string, bytes. The field after each is a list of them."""
