"""Chakra traces: what is read, one trace as that of all ranks, and files that are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from openshelf.errors import BadInput
from openshelf.fabric import LinkClass, SwitchClass
from openshelf.fabric import topologies as top
from openshelf.twin import Rates, Twin, read_groups, read_trace, run_trace, run_traces
from tests.twin.traces import block, node, number, trace, varint

B, L = 50e9, 5e-7
TWIN = Twin(
    top.product([top.Dimension("mesh", 4, LinkClass("a", B, L)), top.Dimension("ring", 4, LinkClass("b", B, L))])
)
COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.et"


def test_a_collective_hides_behind_computing_as_far_as_it_can(file: Path) -> None:
    file.write_bytes(
        trace(
            node(1, COMPUTE, "backward 1", (), 1000),
            node(2, COLLECTIVE, "reduce 1", (1,), 0, {"comm_type": 0, "comm_size": 1 << 30}),
            node(3, COMPUTE, "backward 2", (1,), 2000),
            node(4, COMPUTE, "update", (2, 3), 500),
        )
    )
    nodes = read_trace(file)
    assert [each.type for each in nodes] == ["compute", "collective", "compute", "compute"]
    run = run_trace(TWIN, nodes)
    reduce_s = TWIN.collective("all_reduce", 1 << 30).seconds
    assert reduce_s > 2e-3
    assert run.seconds == pytest.approx(1e-3 + reduce_s + 0.5e-3)
    assert run.exposed_s() == pytest.approx(reduce_s - 2e-3)
    assert [each.name for each in run.critical_path()] == ["backward 1", "reduce 1", "update"]


def test_work_without_a_duration_takes_what_the_rates_say(file: Path) -> None:
    file.write_bytes(trace(node(1, COMPUTE, "gemm", (), 0, {"num_ops": 10**12, "tensor_size": 10**9})))
    nodes = read_trace(file)
    assert run_trace(TWIN, nodes, flop_per_s=1e15).seconds == pytest.approx(1e-3)
    assert run_trace(TWIN, nodes, flop_per_s=1e15, memory_bytes_per_s=1e11).seconds == pytest.approx(1e-2)
    with pytest.raises(BadInput, match=r"gemm.*--flops"):
        run_trace(TWIN, nodes)


def test_a_collective_of_one_dimension_is_done_by_all_groups_at_once(file: Path) -> None:
    attr: dict[str, int | Sequence[bool]] = {"comm_type": 0, "comm_size": 1 << 20, "involved_dim": [False, True]}
    file.write_bytes(trace(node(1, COLLECTIVE, "outer", (), 0, attr)))
    run = run_trace(TWIN, read_trace(file), algorithm="ring")
    assert run.seconds == pytest.approx(6 * ((1 << 20) / 4 / B + L))


def test_what_is_received_was_sent_by_a_rank_alike(file: Path) -> None:
    about = {"comm_src": 0, "comm_dst": 1, "comm_tag": 7, "comm_size": 1 << 20}
    file.write_bytes(trace(node(1, SEND, "send", (), 0, about), node(2, RECV, "recv", (), 0, about)))
    assert run_trace(TWIN, read_trace(file)).seconds == pytest.approx((1 << 20) / B + L)
    file.write_bytes(trace(node(2, RECV, "recv", (), 0, about)))
    with pytest.raises(BadInput, match="receives what no node sends"):
        run_trace(TWIN, read_trace(file))


def test_files_that_are_no_traces_say_what_is_wrong(file: Path) -> None:
    whole = trace(node(1, COMPUTE, "a", (), 5), node(2, COMPUTE, "b", (9,), 5))
    for data, message in (
        (b"", "no nodes"),
        (whole[:-3], "bytes, and the file has"),
        (trace(node(1, 23, "new")), "type 23"),
        (trace(node(1, COMPUTE, "a"), node(1, COMPUTE, "b")), "number of another"),
        (b"\x01\x0f" * 2, "wire type"),
    ):
        file.write_bytes(data)
        with pytest.raises(BadInput, match=message):
            read_trace(file)
    with pytest.raises(BadInput, match="cannot read the trace"):
        read_trace(file.with_name("none.et"))


def test_dependencies_outside_the_file_are_told_and_taken_as_done(file: Path) -> None:
    file.write_bytes(trace(node(1, COMPUTE, "a", (), 5), node(2, COMPUTE, "b", (9, 1), 5)))
    nodes = read_trace(file)
    assert [each.outside for each in nodes] == [[], [9]]
    assert run_trace(TWIN, nodes).seconds == pytest.approx(10e-6)


def test_an_all_gather_counts_what_goes_in(file: Path) -> None:
    file.write_bytes(trace(node(1, COLLECTIVE, "gather", (), 0, {"comm_type": 2, "comm_size": 1 << 20})))
    expected = TWIN.collective("all_gather", 16 << 20).seconds
    assert run_trace(TWIN, read_trace(file)).seconds == pytest.approx(expected)


def test_every_kind_of_attribute_is_read(file: Path) -> None:
    scalars = {
        "double": varint(3 << 3 | 1) + b"\0\0\0\0\0\0\xf8\x3f", "float": varint(5 << 3 | 5) + b"\0\0\xc0\x3f",
        "int32": number(7, -3), "int64": number(9, -3), "uint32": number(11, 3), "uint64": number(13, 3),
        "sint32": number(15, 5), "sint64": number(17, 5), "fixed32": varint(19 << 3 | 5) + b"\x03\0\0\0",
        "fixed64": varint(21 << 3 | 1) + b"\x03" + bytes(7), "sfixed32": varint(23 << 3 | 5) + b"\xfd\xff\xff\xff",
        "sfixed64": varint(25 << 3 | 1) + b"\xfd" + b"\xff" * 7, "bool": number(27, 1), "string": block(29, b"pg"),
        "bytes": block(31, b"raw"), "floats": block(6, block(1, b"\0\0\xc0\x3f" * 2)),
        "ints": block(10, block(1, varint(4) + varint(5))), "strings": block(30, block(1, b"a") + block(1, b"b")),
    }  # fmt: skip
    attributes = b"".join(block(10, block(1, name.encode()) + value) for name, value in scalars.items())
    file.write_bytes(trace(node(1, COMPUTE, "all", (), 5) + attributes))
    assert read_trace(file)[0].attributes == {
        "double": 1.5, "float": 1.5, "int32": -3, "int64": -3, "uint32": 3, "uint64": 3, "sint32": -3, "sint64": -3,
        "fixed32": 3, "fixed64": 3, "sfixed32": -3, "sfixed64": -3, "bool": 1, "string": "pg", "bytes": b"raw",
        "floats": [1.5, 1.5], "ints": [4, 5], "strings": ["a", "b"],
    }  # fmt: skip


def _in_group(name: str) -> bytes:
    about = {"comm_type": 0, "comm_size": 1 << 26}
    return node(1, COLLECTIVE, "reduce", (), 0, about) + block(10, block(1, b"pg_name") + block(29, name.encode()))


def test_collectives_of_process_groups_contend(file: Path) -> None:
    twin = Twin(top.leaf_spine(2, 2, 1, LinkClass("a", B, L), LinkClass("b", B / 2, L), SwitchClass("s", 8)))
    groups = file.with_name("groups.json")
    groups.write_text('{"left": [0, 2], "right": [1, 3]}')
    rates = Rates(algorithm="ring", groups=read_groups(groups))
    traces = {}
    for rank in range(4):
        file.write_bytes(trace(_in_group("left" if rank % 2 == 0 else "right")))
        traces[rank] = read_trace(file)
    alone = twin.collective("all_reduce", 1 << 26, ranks=[0, 2], algorithm="ring").seconds
    assert run_trace(twin, traces[0], algorithm="ring", groups=rates.groups).seconds == pytest.approx(alone)
    assert run_traces(twin, traces, rates).seconds == pytest.approx(2 * alone, rel=0.01)  # both over one uplink
    del traces[3]
    with pytest.raises(BadInput, match="rank 3 has no collective 0"):
        run_traces(twin, traces, rates)


def test_ranks_wait_for_each_others_messages(file: Path) -> None:
    about = {"comm_src": 0, "comm_dst": 1, "comm_tag": 7, "comm_size": 1 << 20}
    file.write_bytes(trace(node(1, COMPUTE, "work", (), 100), node(2, SEND, "send", (1,), 0, about)))
    sends = read_trace(file)
    file.write_bytes(trace(node(1, RECV, "recv", (), 0, about), node(2, COMPUTE, "work", (1,), 50)))
    receives = read_trace(file)
    run = run_traces(TWIN, {0: sends, 1: receives})
    assert run.seconds == pytest.approx(150e-6 + (1 << 20) / B + L)
    with pytest.raises(BadInput, match="does not receive"):
        run_traces(TWIN, {0: sends})
