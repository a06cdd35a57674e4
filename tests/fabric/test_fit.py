"""Calibration: what is put in comes out, noise is pooled, predicted rows are not fitted on, real machines are met."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openshelf.errors import BadInput
from openshelf.fabric import Fabric, Series, compare, fit, fitted, read_measured, report
from openshelf.fabric.fitting import _monotone
from tests.data import DATA

MEASURED = DATA / "nccl_measured.json"
SIZES = [2048, *(1 << n for n in range(20, 27))]

TABLE = """\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid  12 on   node1 device  0 [0x01] NVIDIA A100
#  Rank  1 Group  0 Pid  12 on   node1 device  1 [0x02] NVIDIA A100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float{redop}      -1    {0:5}   25.45   25.45    N/A    40.90   25.64   25.64    N/A
     2097152        524288     float{redop}      -1    {1:5}   25.45   25.45      0    40.90   25.64   25.64      0
     4194304       1048576     float{redop}      -1    {2:5}   25.45   25.45      0    40.90   25.64   25.64      0
# Out of bounds values : 0 OK
"""


def ring(launch_s: float, step_s: float, rate: float, ranks: int, per_node: int | None = None) -> Series:
    def seconds(nbytes: int) -> float:
        return launch_s + 2 * (ranks - 1) * step_s + 2 * (ranks - 1) / ranks * nbytes / rate

    return Series("m", "all_reduce", ranks, per_node or ranks, tuple((nbytes, seconds(nbytes)) for nbytes in SIZES))


@given(st.floats(1e-6, 1e-4), st.floats(1e-7, 1e-5), st.floats(1e9, 1e12), st.integers(3, 64))
def test_a_machine_that_follows_the_model_is_predicted_exactly(
    launch_s: float, step_s: float, rate: float, ranks: int
) -> None:
    send = Series("m", "send_recv", 2, 2, tuple((nbytes, launch_s + step_s + nbytes / rate) for nbytes in SIZES))
    measured = [send, ring(launch_s, step_s, rate, 2), ring(launch_s, step_s, rate, ranks)]
    rows = [row for row in compare(measured, fit(measured)) if row.nbytes >= 1 << 20]
    assert {row.use for row in rows} == {"calibrated", "predicted"}
    assert all(abs(row.error) < 0.02 for row in rows)


def test_nothing_is_fitted_to_what_is_predicted() -> None:
    two, four = ring(1e-5, 1e-6, 1e11, 2), ring(7e-5, 3e-6, 5e10, 4, 4)
    assert fit([two, four])[0].ring_bytes_per_s == fit([two])[0].ring_bytes_per_s


def test_neighbours_out_of_order_are_pooled_and_named() -> None:
    points = ((2048, 1.0), (1 << 20, 5.0), (1 << 21, 3.0), (1 << 22, 8.0))
    series = Series("m", "all_reduce", 2, 2, points)
    assert [seconds for _, seconds in _monotone([series])] == [1.0, 4.0, 4.0, 8.0]
    assert series.falls == (1 << 21,)
    assert "faster than a smaller size at 2097152 bytes" in fit([series])[0].notes[0]
    rows = compare([series], fit([series]))
    assert [bool(row.flags) for row in rows] == [False, False, True, False]


def test_sizes_beyond_the_calibrated_ones_are_flagged() -> None:
    two, four = ring(1e-5, 1e-6, 1e11, 2), ring(1e-5, 1e-6, 1e11, 4)
    far = Series("m", "all_reduce", 4, 4, (*four.points, (1 << 30, 1.0)))
    rows = compare([two, far], fit([two, far]))
    assert [row.nbytes for row in rows if "beyond the calibrated sizes" in row.flags] == [1 << 30]


def test_the_table_of_nccl_tests_is_read(tmp_path: Path) -> None:
    for redop, name in (("     sum", "all_reduce"), ("        ", "sendrecv")):
        path = tmp_path / f"{name}_perf.txt"
        path.write_text(TABLE.format(41.2, 60.5, 100.25, redop=redop))
        series = read_measured(path, machine="box")[0]
        assert (series.machine, series.ranks, series.per_node, series.where) == ("box", 2, 2, "within")
        assert [nbytes for nbytes, _ in series.points] == [1 << 20, 1 << 21, 1 << 22]
        assert [seconds for _, seconds in series.points] == pytest.approx([41.2e-6, 60.5e-6, 100.25e-6])


def test_what_is_not_a_measurement_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(TABLE.format(1, 2, 3, redop="     sum"))
    with pytest.raises(BadInput, match="--collective"):
        read_measured(path)
    assert read_measured(path, "all_reduce")[0].collective == "all_reduce"
    for text, words in [
        ("alltoall_perf", "alltoall came; expected the output of all_reduce_perf"),
        ("all_reduce_perf", "expected a line '#  Rank"),
        ("all_reduce_perf\n" + TABLE.replace("time", "tyme").format(1, 2, 3, redop=" sum"), "no header"),
        ('{"data": {"a/b": [[1, 2]]}}', "expected keys as machine/send_recv"),
        ('{"rows": 1}', "expected JSON with a key 'data'"),
        ('{"data": {"m/ranks2/per_node2": [[2048, -1]]}}', "above 0"),
    ]:
        path.write_text(text)
        with pytest.raises(BadInput, match=words):
            read_measured(path)
    small = Series("m", "all_reduce", 2, 2, ((8, 1e-6), (1 << 20, 2e-6)))
    with pytest.raises(BadInput, match="measure larger"):
        fit([small])
    with pytest.raises(BadInput, match="nothing to calibrate on"):
        fit([ring(1e-5, 1e-6, 1e11, 4)])


def test_what_was_fitted_can_be_included(tmp_path: Path) -> None:
    two = ring(1e-5, 1e-6, 1e11, 2)
    (tmp_path / "fit.yaml").write_text(fitted(fit([two])).yaml())
    (tmp_path / "box.yaml").write_text(
        "name: box\ninclude: [laptop, fit.yaml]\ntopology: {ring: {endpoints: 4, link: m-within}}\n"
    )
    fabric = Fabric.load(tmp_path / "box.yaml")
    cost = fabric.send(1 << 22, 0, 1)
    assert cost.source == "measured"
    assert cost.seconds == pytest.approx(fit([two])[0].send(1 << 22), rel=1e-6)


@pytest.mark.skipif(not MEASURED.exists(), reason=f"{MEASURED} is not there")
def test_real_machines_are_predicted_within_the_bar() -> None:
    measured = read_measured(MEASURED)
    rows = compare(measured, fit(measured))
    large = [row for row in rows if row.use == "predicted" and row.where == "within" and row.nbytes >= 4 << 20]
    assert statistics.median(abs(row.error) for row in large) <= 0.15
    assert (
        len([row for row in rows if row.use == "predicted" and row.where == "within" and row.nbytes >= 4 << 20]) == 10
    )
    assert len(rows) == sum(len(each.points) for each in measured), "a row is not reported"
    assert report(measured)["left_out"] == []
