"""twin.ranks8, twin.nccl: measured collectives of real machines, predicted from other rows than those predicted.

Every machine and library in the tables is fitted three times: on its rows of up to 4 ranks, from which more are
predicted (twin.ranks8 where 8 are); on each set of rank counts but one; and not at all, with the law of the machine
that is nearest to it and its own link's public rate (twin.machine_out; twin.kind_out without those of its link's
rate). Times are what the twin says of a fabric with the fitted library. Beside them stands a straight line fitted to
the same rows: a start, seconds for each step and for each byte moved.

Tables are network/nccl_one_node.csv, network/custom_allreduce.csv and nccl_measured.json of the data's directory
(--data, or OPENSHELF_DATA, or beside the repository); machines, versions and rank counts are those that are there.
Used by twin.py; by itself it prints every row, and whether it was fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from kit.data import DATA
from kit.machines import fabric_of, public, wanted
from kit.side_by_side import Report, Row, arguments
from openshelf.errors import BadInput
from openshelf.fabric import (
    Calibration,
    Law,
    Series,
    Wanted,
    bounded,
    fit,
    read_measured,
    work,
)
from openshelf.twin import Twin

FEW = 4
SMALL, LARGE = 1 << 10, 64 << 20
ANY = "any collective"
BARS = {"1 KiB to 64 MiB": 12.0, "above 64 MiB": 7.0}


@dataclass(frozen=True)
class Said:
    """One measured row, what the twin says of it, what the straight line says, and whether it was fitted."""

    series: Series
    nbytes: int
    measured_s: float
    said_s: float
    line_s: float
    fitted: bool

    @property
    def error(self) -> float:
        return self.said_s / self.measured_s - 1

    @property
    def line_error(self) -> float:
        return self.line_s / self.measured_s - 1

    @property
    def text(self) -> str:
        use = "fitted" if self.fitted else "predicted"
        return (
            f"{use:9} {self.series.name:70} {self.nbytes:12d} B measured {self.measured_s * 1e6:11.2f} us "
            f"twin {self.said_s * 1e6:11.2f} us {self.error:+7.1%} line {self.line_error:+7.1%}"
        )


def lawful(measured: Iterable[Series]) -> list[Series]:
    """Series of collectives that the law knows; the others are said, and left out."""
    every = list(measured)
    known = [each for each in every if work("ring", each.collective, 2) or work("exchange", each.collective, 2)]
    for name in sorted({each.collective for each in every} - {each.collective for each in known}):
        print(f"left out: {name}, of which the law says nothing")
    return known


def machines(series: Iterable[Series]) -> dict[tuple[str, str], list[Series]]:
    """Series by machine and library."""
    found: dict[tuple[str, str], list[Series]] = {}
    for each in series:
        found.setdefault((each.machine, each.library), []).append(each)
    return found


def said(measured: Sequence[Series], found: Calibration, lines: dict[str, tuple[float, float, float]]) -> list[Said]:
    """Every row of some series, by the twin on a fabric with the calibration's library."""
    made = []
    twins = {ranks: Twin(fabric_of(found, ranks)) for ranks in {each.ranks for each in measured}}
    for series in measured:
        twin = twins[series.ranks]
        asked = work("ring", series.collective, series.ranks) or work("exchange", series.collective, series.ranks)
        assert asked
        start_s, step_s, byte_s = lines.get(series.collective, lines[ANY])
        for nbytes, seconds in series.points:
            time_s = twin.collective(series.collective, nbytes, algorithm="library").seconds
            line_s = start_s + asked.steps * step_s + asked.moved * nbytes * byte_s
            made.append(Said(series, nbytes, seconds, time_s, line_s, series.ranks in found.ranks))
    return made


def predicted(out: Sequence[Series], used: Sequence[Series], told: Wanted, shown: Sequence[Series] = ()) -> list[Said]:
    """Rows of some series by the law of others, after those `shown` beside them; those it cannot tell are said."""
    try:
        found = fit(used, told)[0]
    except BadInput as error:
        print(f"left out: {', '.join(each.name for each in out)}: {error}")
        return []
    return said([*shown, *able(out, found)], found, straight(used))


def able(out: Sequence[Series], found: Calibration) -> list[Series]:
    """Series that a law can tell of; the others are said, and left out."""
    known = [regime for regime in found.law.regimes if regime.name not in found.law.unused]
    made = [each for each in out if any(work(regime.shape, each.collective, each.ranks) for regime in known)]
    for each in out:
        if each not in made:
            print(f"left out: {each.name}, of which the rows of {found.name} say nothing")
    return made


def straight(measured: Sequence[Series]) -> dict[str, tuple[float, float, float]]:
    """A start, seconds a step and a byte moved for each collective, and for ANY, by squares of relative errors."""
    made: dict[str, tuple[float, float, float]] = {}
    for kind in dict.fromkeys([*(each.collective for each in measured), ANY]):
        rows = []
        for each in measured:
            asked = work("ring", each.collective, each.ranks) or work("exchange", each.collective, each.ranks)
            if kind in (each.collective, ANY) and asked:
                rows += [(1 / s, asked.steps / s, asked.moved * nbytes / s) for nbytes, s in each.points]
        start_s, step_s, byte_s = bounded(np.array(rows), np.ones(len(rows)), np.zeros(3)).tolist()
        made[kind] = (start_s, step_s, byte_s)
    return made


def from_few_ranks(measured: Sequence[Series]) -> list[Said]:
    """Rows of more than 4 ranks, from those of up to 4 of the same machine and library."""
    made = []
    for (machine, library), own in machines(measured).items():
        few = [each for each in own if each.ranks <= FEW]
        more = [each for each in own if each.ranks > FEW]
        if few and more:
            made += predicted(more, few, wanted(machine), few)
        elif more:
            print(f"left out: {machine} {library}, of which there are no rows of up to {FEW} ranks")
    return made


def each_count_left_out(measured: Sequence[Series]) -> list[Said]:
    """Rows of each rank count, from those of the other counts."""
    made = []
    for (machine, library), own in machines(measured).items():
        counts = sorted({each.ranks for each in own})
        if len(counts) < 2:
            print(f"not left out by rank count: {machine} {library}, of which there is one, {counts[0]}")
            continue
        for ranks in counts:
            rest = [each for each in own if each.ranks != ranks]
            made += predicted([each for each in own if each.ranks == ranks], rest, wanted(machine))
    return made


def each_machine_left_out(measured: Sequence[Series], kind: bool = False) -> list[Said]:
    """Rows of each machine, by the law of the machines that are nearest to it; those unknown are said, and left out.

    With `kind`, machines with the same public figures are left out too: an H100 says nothing of an H200 then.
    """
    rows_of = machines(measured)
    for name in sorted({machine for machine, _ in rows_of if not (kind or public(machine))}):
        print(f"no public figures of {name}: it is not predicted from other machines, nor they from it")
    every = {key: own for key, own in rows_of.items() if public(key[0])}
    made = []
    for (machine, library), own in every.items():
        told = public(machine)
        others = {
            key: rows for key, rows in every.items() if key[0] != machine and not (kind and public(key[0]) == told)
        }
        if not others:
            print(f"left out: {machine} {library}, beside which there is no other machine")
        else:
            try:
                law = of_nearest(machine, library, others)
            except BadInput as error:
                print(f"left out: {machine} {library}, of which the nearest machine says nothing: {error}")
                continue
            series = [each for rows in others.values() for each in rows]
            line = straight([each for each in series if each.library == library] or series)
            link = wanted(machine).link_bytes_per_s or 0.0
            found = Calibration(machine, library, "within", law, (), (), 0, "", 0.0, 0, 0, link, ())
            made += said(able(own, found), found, line)
    return made


OF_PROCESSORS = ("LL", "LL to peers")
"""Regimes whose rate is that of the processors, which look at a flag with every word, whatever the link."""


def of_nearest(machine: str, library: str, others: dict[tuple[str, str], list[Series]]) -> Law:
    """The law of the nearest machines' rows, all rates of the wires as shares of the link.

    Of regimes that those rows do not show nothing is said.
    """
    far = {key: distance((machine, library), key) for key in others}
    near = [key for key in others if far[key] <= min(far.values()) + 1e-9]
    told, known = wanted(machine), wanted(near[0][0])
    assert told.link_bytes_per_s
    assert known.link_bytes_per_s
    share = known.link_bytes_per_s / told.link_bytes_per_s
    rows = [replace(each, machine="nearest", library="nccl") for key in near for each in others[key]]
    law = fit(rows, replace(told, link_bytes_per_s=known.link_bytes_per_s))[0].law
    regimes = tuple(
        each if each.name in OF_PROCESSORS else replace(each, s_per_byte=each.s_per_byte * share)
        for each in law.regimes
    )
    return replace(law, regimes=regimes, sharing=law.sharing if told.on_a_bus else 0.0)


def distance(one: tuple[str, str], other: tuple[str, str]) -> float:
    """How unlike two machines and libraries are: in doublings of the link's rate; a switch that adds up, a bus instead
    of a switch count as one, another version of the library as half of one."""
    here, there = public(one[0]), public(other[0])
    assert here
    assert there
    links = abs(math.log2(here.link_bytes_per_s / there.link_bytes_per_s))
    return links + (here.reduces != there.reduces) + (here.on_a_bus != there.on_a_bus) + 0.5 * (one[1] != other[1])


def of_sizes(rows: Iterable[Said]) -> dict[str, list[Said]]:
    """Rows by the ranges that have a bar; those below are in none."""
    every = list(rows)
    return {
        "1 KiB to 64 MiB": [row for row in every if SMALL <= row.nbytes <= LARGE],
        "above 64 MiB": [row for row in every if row.nbytes > LARGE],
    }


def off(rows: Sequence[Said]) -> float:
    """The median absolute error, in per cent."""
    return 100 * median(abs(row.error) for row in rows)


def line_off(rows: Sequence[Said]) -> float:
    return 100 * median(abs(row.line_error) for row in rows)


def summed(report: Report, id: str, rows: Sequence[Said], bars: bool) -> None:
    """One row for each range of sizes, the worst first as a share of its bar; then one for each machine and library."""
    ranges = {name: some for name, some in of_sizes(rows).items() if some}
    for name in sorted(ranges, key=lambda each: -off(ranges[each]) / BARS[each]):
        some = ranges[name]
        bar, note = (f"<= {BARS[name]:g}" if bars else ""), f"a straight line: {line_off(some):.1f} %"
        case = f"{name}, {len(some)} rows: median absolute error"
        report.add(Row(id, case, off(some), "%", "straight line", line_off(some) / off(some), None, bar=bar, note=note))
    for (machine, library), own in machines(each.series for each in rows).items():
        for name, some in ranges.items():
            mine = [row for row in some if row.series in own]
            if mine:
                case = f"{machine} {library}, {name}"
                ratio = line_off(mine) / off(mine)
                report.add(Row(f"{id}.machine", case, off(mine), "%", "straight line", ratio, None))


def old_rows(data: Path) -> list[Said]:
    """All-reduces of 4 ranks and more within nodes, from sends and two ranks."""
    path = data / "nccl_measured.json"
    measured = [each for each in read_measured(path) if each.where == "within"] if path.exists() else []
    made = []
    for (machine, _), own in machines(measured).items():
        two = [each for each in own if each.ranks == 2]
        if two:
            more = [each for each in own if each not in two]
            made += predicted(more, two, wanted(machine), two)
    return made


def nccl_rows(data: Path = DATA) -> list[Row]:
    """twin.nccl: the bar's row; none where the data is not there."""
    large = [row for row in old_rows(data) if not row.fitted and row.nbytes >= 4 << 20]
    case = "median absolute error within nodes, 4 MiB and more, from two ranks"
    return [Row("twin.nccl", case, off(large), "%", "measured", None, None, bar="<= 15")] if large else []


def main() -> None:
    args = arguments(__doc__ or "", with_data=True)
    data = Path(args.data) if args.data else DATA
    report = Report("measured collectives, predicted")
    tables = [data / "network" / name for name in ("nccl_one_node.csv", "custom_allreduce.csv")]
    nccl, kernels = (lawful(read_measured(path)) if path.exists() else [] for path in tables)
    rows = from_few_ranks(nccl)
    summed(report, "twin.ranks8", [row for row in rows if not row.fitted], bars=True)
    summed(report, "twin.ranks8_kernels", [row for row in from_few_ranks(kernels) if not row.fitted], bars=False)
    for row in rows if not args.quick else [each for each in rows if not each.fitted]:
        print(row.text)
    out = each_count_left_out(nccl)
    summed(report, "twin.ranks_out", out, bars=False)
    unseen = each_machine_left_out(nccl)
    unlike = [] if args.quick else each_machine_left_out(nccl, kind=True)
    summed(report, "twin.machine_out", unseen, bars=False)
    summed(report, "twin.kind_out", unlike, bars=False)
    if not args.quick:
        for title, some in (
            ("each rank count left out", out),
            ("each machine left out", unseen),
            ("each kind of machine left out", unlike),
        ):
            print(f"\n{title}:")
            for row in some:
                print(row.text)
    for each in nccl_rows(data):
        report.add(each)
    if not report.rows:
        print(f"no tables of measured collectives in {data}")
    report.finish(args.json)


if __name__ == "__main__":
    main()
