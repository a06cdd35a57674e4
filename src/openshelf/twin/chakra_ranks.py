"""Chakra traces of every rank: each runs its own, collectives and messages are matched, and all share the links.

A collective begins when all ranks of its group have come to it, and its flows are in the same graph as everything else,
so that collectives of different groups contend. Those of one group are matched in the order of each rank's file, and go
one after the other. A message is matched by its ends, tag and order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openshelf.errors import BadInput
from openshelf.twin.chakra import Node, Rates, collective_of, group_of, local_work
from openshelf.twin.tasks import Tasks

if TYPE_CHECKING:
    from openshelf.twin.run import Run
    from openshelf.twin.twin import Twin

_Message = tuple[int, int, int, int]
"""(source, target, tag, which of them)"""


@dataclass
class _Meeting:
    """The nodes of one collective, by rank."""

    nodes: dict[int, Node] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


def run_traces(twin: Twin, traces: Mapping[int, Sequence[Node]], rates: Rates | None = None) -> Run:
    """Runs a trace for each rank; `traces` has them by rank."""
    rates, tasks = rates or Rates(), twin.tasks()
    meetings: dict[tuple[str, int], _Meeting] = {}
    begins: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}
    sent: dict[_Message, tuple[int, Node]] = {}
    received: dict[_Message, int] = {}
    for rank, nodes in traces.items():
        counts: dict[object, int] = {}
        for node in nodes:
            name = node.name or f"{node.type} {node.id}"
            if node.type in ("collective", "send", "recv"):
                begin = end = tasks.lasting(0.0, rank, name=name)
                if node.type == "collective":
                    end = tasks.lasting(0.0, rank, name=f"end of {name}")
                    members = group_of(node, rates)
                    group = "all" if members is None else ",".join(map(str, sorted(members)))
                    number = counts[group] = counts.get(group, -1) + 1
                    met = meetings.setdefault((group, number), _Meeting())
                    met.nodes[rank], met.begins[rank], met.ends[rank] = node, begin, end
                else:
                    _note(node, rank, begin, counts, sent, received)
                begins[rank, node.id], ends[rank, node.id] = begin, end
                continue
            seconds, stream, kind = local_work(node, rates)
            own = tasks.lasting(seconds, rank, stream=-1 if stream < 0 else 3 * rank + stream, name=name, kind=kind)
            begins[rank, node.id] = ends[rank, node.id] = own
    for rank, nodes in traces.items():
        for node in nodes:
            tasks.link([ends[rank, each] for each in node.before], [begins[rank, node.id]] * len(node.before))
    _meet(twin, tasks, meetings, traces, rates)
    for message, (begin, node) in sent.items():
        if message not in received:
            raise BadInput(
                f"node {node.id} ({node.name!r}) of rank {message[0]} sends what rank {message[1]} does not receive"
            )
        flow = tasks.flow(message[0], message[1], node.number("comm_size"), [begin], name=node.name)
        tasks.link([flow], [received.pop(message)])
    if received:
        src, dst, tag, _ = next(iter(received))
        raise BadInput(f"rank {dst} receives a message of tag {tag} from rank {src}, which does not send it")
    return twin.run(tasks)


def _note(
    node: Node, rank: int, task: int, counts: dict[object, int], sent: dict[_Message, tuple[int, Node]],
    received: dict[_Message, int],
) -> None:  # fmt: skip
    sends = node.type == "send"
    other = int(node.number("comm_dst" if sends else "comm_src"))
    ends = (rank, other) if sends else (other, rank)
    key = (node.type, *ends, int(node.number("comm_tag")))
    counts[key] = counts.get(key, -1) + 1
    if sends:
        sent[(*ends, key[3], counts[key])] = (task, node)
    else:
        received[(*ends, key[3], counts[key])] = task


def _meet(
    twin: Twin, tasks: Tasks, meetings: Mapping[tuple[str, int], _Meeting], traces: Mapping[int, Sequence[Node]],
    rates: Rates,
) -> None:  # fmt: skip
    """Adds every collective, after all its ranks have come to it and the one before it in its group is done."""
    before: dict[str, int] = {}
    for (group, number), met in meetings.items():
        node = next(iter(met.nodes.values()))
        found = collective_of(twin, node, rates)
        ranks = sorted(found[2] if found and found[2] else traces if group == "all" else map(int, group.split(",")))
        missing = [rank for rank in ranks if rank not in met.nodes]
        if missing:
            raise BadInput(
                f"rank {missing[0]} has no collective {number} of its group, such as {node.name!r} of the others"
            )
        after = list(met.begins.values()) + ([before[group]] if group in before else [])
        if found is None:
            done = tasks.compute(0.0, ranks[0], after)
        else:
            kind, size, _, dimension = found
            best = twin.collective(kind, size, algorithm=rates.algorithm, ranks=ranks, dimension=dimension)
            done = twin.add(
                tasks, kind, size, algorithm=best.algorithm, chunks=best.chunks, ranks=ranks, dimension=dimension,
                after=after, name=node.name,
            )  # fmt: skip
        before[group] = done
        tasks.link([done] * len(met.ends), list(met.ends.values()))
