"""Calibration: what is put in comes out, held rows are not looked at, what rows do not say is said, files are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openshelf.errors import BadInput
from openshelf.fabric import (
    Fabric,
    Law,
    Regime,
    Series,
    TokenRow,
    Wanted,
    compare,
    fit,
    fitted,
    ledger,
    read_measured,
    read_tokens,
    report,
    report_tokens,
)
from openshelf.fabric.calibration.fitting import rows_hash
from openshelf.fabric.laws.tokens import Phase

LINK = 100e9
SIZES = [1 << n for n in range(10, 30, 2)]
LAW = Law(
    (
        Regime("LL", "ring", 4e-6, 1e-6, 1 / 5e9),
        Regime("LL128", "ring", 6e-6, 1.2e-6, 1 / 40e9, 1 / 45e9),
        Regime("simple", "ring", 20e-6, 2e-6, 1 / 85e9, 1 / 700e9),
        Regime("LL to peers", "peers", 6e-6, 0.4e-6, 1 / 4e9),
        Regime("simple to peers", "exchange", 15e-6, 0.5e-6, 1 / 75e9, 1 / 900e9),
    )
)

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


def measured(kind: str, ranks: int, law: Law = LAW, machine: str = "m") -> Series:
    return Series(machine, kind, ranks, ranks, tuple((n, law.seconds(kind, ranks, n)) for n in SIZES), "nccl 1")


def every(*counts: int, law: Law = LAW) -> list[Series]:
    return [measured(kind, n, law) for kind in ("all_reduce", "all_gather", "all_to_all") for n in counts]


def test_a_machine_that_follows_the_law_is_predicted_on_counts_it_was_not_fitted_on() -> None:
    rows = [row for row in compare(every(2, 4, 8, 32), fit(every(2, 4), Wanted(LINK))) if row.use == "predicted"]
    assert {row.ranks for row in rows} == {8, 32}
    assert sorted(abs(row.error) for row in rows)[len(rows) // 2] < 0.02
    assert max(abs(row.error) for row in rows) < 0.15


def test_switches_that_add_up_are_found_by_the_rows_that_they_made_faster() -> None:
    law = replace(LAW, regimes=(*LAW.regimes, Regime("in switch", "in_switch", 30e-6, 0.0, 1 / 68e9)))
    found = fit(every(2, 4, 8, law=law), Wanted(LINK, reduces=True))[0]
    inside = next(each for each in found.law.regimes if each.name == "in switch")
    assert 1 / inside.s_per_byte == pytest.approx(68e9, rel=0.05)
    two = fit(every(2, law=law), Wanted(LINK, reduces=True))[0]
    assert two.law.unused == ("in switch",)
    assert any("no row says anything of in switch" in note for note in two.notes)


def test_ranks_behind_one_bus_get_a_share_each() -> None:
    shared = replace(LAW, sharing=1.0)
    found = fit(every(2, 4, law=shared), Wanted(LINK))[0]
    assert found.law.sharing == 1.0
    assert found.seconds("all_reduce", 8, 1 << 28) == pytest.approx(shared.seconds("all_reduce", 8, 1 << 28), rel=0.05)
    assert fit(every(2, 4), Wanted(LINK))[0].law.sharing == 0.0
    four = every(4, law=shared)
    assert fit(four, Wanted(LINK))[0].law.sharing == 0.0
    alone = fit(four, Wanted(LINK, on_a_bus=True))[0]
    assert alone.seconds("all_reduce", 8, 1 << 28) == pytest.approx(shared.seconds("all_reduce", 8, 1 << 28), rel=0.1)
    assert "one rank count does not say" in " ".join(alone.notes)


def test_rows_that_are_held_back_are_not_looked_at() -> None:
    two, eight = every(2), every(8, law=replace(LAW, sharing=2.0))
    assert fit([*two, *eight], Wanted(LINK), {8})[0].law == fit(two, Wanted(LINK))[0].law
    assert {row.use for row in compare(eight, fit(two, Wanted(LINK)))} == {"predicted"}


def test_one_rank_count_does_not_tell_bytes_moved_from_a_ranks_own() -> None:
    def own(counts: tuple[int, ...]) -> dict[str, bool]:
        found = fit(every(*counts), Wanted(LINK))[0].constants
        return {each.regime: each.determined for each in found if each.part == "own_s_per_byte"}

    assert not any(own((2,)).values())
    assert own((2, 4, 8))["simple"]


def test_the_ledger_names_rows_constants_and_errors_on_counts_left_out() -> None:
    series = every(2, 4)
    found = report(series, Wanted(LINK))
    line = ledger(fit(series, Wanted(LINK)), found["left_out"])[0]
    assert line["rows"] == 6 * len(SIZES)
    assert line["rows_sha256"] == rows_hash(list(reversed(series)))
    assert "simple: s_per_byte" in line["free_constants"]
    assert [each["ranks"] for each in line["left_out"]] == [2, 4]
    assert all(each["median_error"] < 0.2 for each in line["left_out"])
    other = replace(series[0], points=((1 << 10, 1.0), *series[0].points[1:]))
    assert rows_hash([other, *series[1:]]) != line["rows_sha256"]


def test_neighbours_out_of_order_are_named_and_flagged() -> None:
    points = ((2048, 1e-5), (1 << 20, 5e-5), (1 << 21, 3e-5), (1 << 22, 8e-5))
    series = Series("m", "all_reduce", 2, 2, points)
    assert series.falls == (1 << 21,)
    assert "faster than a smaller size at 2097152 bytes" in fit([series])[0].notes[0]
    assert [bool(row.flags) for row in compare([series], fit([series]))] == [False, False, True, False]


def test_sizes_beyond_the_calibrated_ones_are_flagged() -> None:
    far = replace(measured("all_reduce", 4), points=((1 << 32, 1.0),))
    rows = compare([far], fit([measured("all_reduce", 2)], Wanted(LINK)))
    assert [row.flags for row in rows] == [("beyond the calibrated sizes",)]


def test_the_table_of_nccl_tests_is_read(tmp_path: Path) -> None:
    for redop, name, kind in (("     sum", "all_reduce", "all_reduce"), ("        ", "alltoall", "all_to_all")):
        path = tmp_path / f"{name}_perf.txt"
        path.write_text(TABLE.format(41.2, 60.5, 100.25, redop=redop))
        series = read_measured(path, machine="box")[0]
        assert (series.machine, series.collective, series.ranks, series.where) == ("box", kind, 2, "within")
        assert [nbytes for nbytes, _ in series.points] == [1 << 20, 1 << 21, 1 << 22]
        assert [seconds for _, seconds in series.points] == pytest.approx([41.2e-6, 60.5e-6, 100.25e-6])


def test_tables_are_told_apart_by_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("system,nccl,op,gpus,bytes,us,samples\nx,2.1,alltoall,4,2048,10,1\nx,2.1,alltoall,4,1024,9,1\n")
    series = read_measured(path)[0]
    assert replace(series, points=()) == Series("x", "all_to_all", 4, 4, (), "nccl 2.1")
    assert [nbytes for nbytes, _ in series.points] == [1024, 2048]
    assert [seconds for _, seconds in series.points] == pytest.approx([9e-6, 10e-6])
    path.write_text("system,engine,version,kernel,variant,dtype,gpus,elements,us\nx,e,1,K,v,bfloat16,2,512,5\n")
    assert read_measured(path)[0].points[0][0] == 1024  # elements, not bytes
    path.write_text("source,what,op,gpus,nvlink_domain,bytes,us\ns,X rack,all_reduce,64,8,1024,5\n")
    assert (read_measured(path)[0].where, read_measured(path)[0].channels) == ("between", 8)
    path.write_text(
        "system,kernel,phase,moe_dtype,tokens_per_rank,hidden,topk,experts,ranks,us\n"
        "x,NVLinkOneSided,combine,nvfp4,8,7168,8,256,4,20\n"
    )
    row = read_tokens(path)[0]
    assert (row.value_bytes, row.one_sided, row.units) == (2.0, True, 4)  # a combine sends bfloat16
    with pytest.raises(BadInput, match=r"line 2: .*table of MoE exchanges"):
        read_measured(path)


def test_what_is_not_a_measurement_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(TABLE.format(1, 2, 3, redop="     sum"))
    with pytest.raises(BadInput, match="--collective"):
        read_measured(path)
    assert read_measured(path, "all_reduce")[0].collective == "all_reduce"
    for text, words in [
        ("reduce_perf", "reduce came; expected the output of nccl-tests"),
        ("all_reduce_perf", "expected a line '#  Rank"),
        ("all_reduce_perf\n" + TABLE.replace("time", "tyme").format(1, 2, 3, redop=" sum"), "no header"),
        ('{"data": {"a/b": [[1, 2]]}}', "expected keys as machine/send_recv"),
        ('{"rows": 1}', "expected JSON with a key 'data'"),
        ('{"data": {"m/ranks2/per_node2": [[2048, -1]]}}', "above 0"),
        ("system,nccl,op,gpus,bytes,us\nx,1,all_reduce,two,8,1\n", "line 2"),
    ]:
        path.write_text(text)
        with pytest.raises(BadInput, match=words):
            read_measured(path)
    with pytest.raises(BadInput, match="a law needs more"):
        fit([Series("m", "all_reduce", 2, 2, ((8, 1e-6),))])
    with pytest.raises(BadInput, match="nothing to calibrate on"):
        fit([measured("all_reduce", 4)], None, {4})
    with pytest.raises(BadInput, match="one library"):
        fitted(fit([measured("all_reduce", 2), measured("all_reduce", 2, machine="n")]))


def test_what_was_fitted_can_be_included(tmp_path: Path) -> None:
    found = fit(every(2, 4), Wanted(LINK))
    (tmp_path / "fit.yaml").write_text(fitted(found).yaml())
    (tmp_path / "box.yaml").write_text(
        "name: box\ninclude: [laptop, fit.yaml]\ntopology: {ring: {endpoints: 4, link: m-within}}\n"
    )
    fabric = Fabric.load(tmp_path / "box.yaml")
    assert fabric.send(1 << 22, 0, 1).source == "measured"
    assert fabric.library
    assert fabric.library.law(["m-within"]).seconds("all_reduce", 4, 1 << 26) == pytest.approx(
        found[0].seconds("all_reduce", 4, 1 << 26), rel=1e-3
    )
    (tmp_path / "bad.yaml").write_text((tmp_path / "fit.yaml").read_text().replace("wire: m-within", "wire: other"))
    (tmp_path / "box.yaml").write_text("name: box\ninclude: [laptop, bad.yaml]\n")
    with pytest.raises(BadInput, match="no such name 'other' among wires"):
        Fabric.load(tmp_path / "box.yaml")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("m,1,all_reduce,0,1024,5", "expected 2 ranks or more"),
        ("m,1,all_reduce,1,1024,5", "expected 2 ranks or more"),
        ("m,1,all_reduce,2,1024", "no row of measured collectives"),
        ("m,1,all_reduce,2,1024,nan", "expected numbers above 0"),
        ("m,1,reduce,2,1024,5\nm,1,reduce,2,2048,6", "no regime does these"),
        ("m,1,all_reduce,2,1024,5", "a law needs more"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"system,nccl,op,gpus,bytes,us\n{rows}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=said):
        fit(read_measured(path))


def test_what_no_regime_does_is_left_out_and_named() -> None:
    series = [*every(2, 4), replace(measured("all_reduce", 2), collective="reduce")]
    assert fit(series, Wanted(LINK))[0].law == fit(series[:-1], Wanted(LINK))[0].law
    found = report(series, Wanted(LINK))
    assert found["not_compared"] == ["m reduce of 2 by nccl 1, 2 a node"]
    assert any("reduce of 2" in note for note in found["calibrations"][0]["notes"])


def test_a_count_that_the_other_rows_do_not_tell_is_named() -> None:
    series = [measured("all_reduce", 8), replace(measured("all_reduce", 2), points=((1024, 9e-6),))]
    assert [(each["ranks"], each["median_error"] is None) for each in report(series)["left_out"]] == [
        (2, False),
        (8, True),
    ]


def test_a_links_rate_is_a_number_above_0() -> None:
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="expected a number above 0"):
            Wanted(rate)


def test_exchanges_are_left_out_by_their_units_too() -> None:
    def rows(*counts: int) -> list[TokenRow]:
        made = [
            TokenRow("m", "OneSided", "dispatch", "", 4, tokens, 64, 2, 8, 2, "units", 1.0) for tokens in (1, 8, 64)
        ]
        law = Phase(1e-5, 1e-6, 1e-7, 1e-11)
        every = [replace(row, units=units) for row in made for units in counts]
        return [replace(row, seconds=law.seconds(row.load)) for row in every]

    _, lines = report_tokens(rows(2, 4, 8), 1e11, hold={8})
    assert [(each["ranks"], each["held_back"]) for each in lines[0]["left_out"]] == [(2, False), (4, False), (8, True)]
    assert max(each["median_error"] for each in lines[0]["left_out"]) < 0.2
    _, one = report_tokens(rows(4), 1e11)
    assert [each["median_error"] for each in one[0]["left_out"]] == [None]
    with pytest.raises(BadInput, match="none came"):
        report_tokens(rows(4), 1e11, hold={4})
    with pytest.raises(BadInput, match="needs rows of 2 nodes"):
        report_tokens([replace(rows(4)[0], units=1)], 1e11, nodes=True)
