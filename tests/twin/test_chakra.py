"""Chakra traces: what is read, one trace as that of all ranks, and files that are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from openshelf.errors import BadInput
from openshelf.fabric import LinkClass
from openshelf.fabric import topologies as top
from openshelf.twin import Twin, read_trace, run_trace
from tests.twin.traces import node, trace

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
        (whole, "waits for 9, which is not in the trace"),
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
