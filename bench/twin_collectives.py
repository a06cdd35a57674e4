"""twin.scale_up, twin.moe_a2a, twin.deepep: many ranks from few, MoE exchanges on ranks and nodes left out.

twin.scale_up: all-reduces of whole racks and many nodes (network/nccl_tests_scale.csv), from the rows of the same kind
of machine in one node (network/nccl_one_node.csv, of 8 ranks where a domain has 8, else of the most there are) and
the public rates of links and cards. twin.moe_a2a: each rank count of network/gb200_moe_alltoall.csv from the others,
and the token count from which one-sided kernels are faster. twin.deepep: four nodes and more of network/deepep.csv
from one and two. Every row is printed with whether it was fitted. Tables are read from the data's directory (--data,
or OPENSHELF_DATA, or beside the repository), with the machines, rank counts and kernels that they have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from kit.data import DATA
from kit.machines import Public, fabric_of, public, wanted
from kit.side_by_side import Report, Row, arguments
from openshelf.errors import BadInput
from openshelf.fabric import (
    Series,
    TokenCalibration,
    TokenRow,
    bounded,
    fit,
    fit_tokens,
    read_measured,
    read_tokens,
    work,
)
from openshelf.twin import Twin
from twin_nccl import straight

SCALED = 512 << 20
NODES = 2


@dataclass(frozen=True)
class Said:
    """A measured row, what is said of it, what a straight line says, and whether it was fitted."""

    case: str
    name: str
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
            f"{use:9} {self.name:78} measured {self.measured_s * 1e6:11.2f} us said {self.said_s * 1e6:11.2f} us "
            f"{self.error:+7.1%} line {self.line_error:+7.1%}"
        )


def off(rows: Iterable[Said]) -> float:
    return 100 * median(abs(row.error) for row in rows)


def line_off(rows: Iterable[Said]) -> float:
    return 100 * median(abs(row.line_error) for row in rows)


def summed(report: Report, id: str, rows: Sequence[Said], bar: str) -> None:
    """A row for each case, the worst first; only predicted rows count."""
    cases: dict[str, list[Said]] = {}
    for row in rows:
        if not row.fitted:
            cases.setdefault(row.case, []).append(row)
    for case in sorted(cases, key=lambda each: -off(cases[each])):
        own = cases[case]
        note = f"a straight line: {line_off(own):.1f} %"
        text = f"{case}, {len(own)} rows: median absolute error"
        ratio = line_off(own) / off(own)
        report.add(Row(id, text, off(own), "%", "straight line", ratio, None, bar=bar, note=note))


def kind_of_machine(what: str, known: Sequence[str]) -> str | None:
    """The machine of a node's table that a text names: `H100, 8 nodes, ...` is h100_sxm."""
    words = set(re.split(r"[^a-z0-9]+", what.lower()))
    return next((each for each in known if each.split("_")[0] in words), None)


def scaled(data: Path) -> list[Said]:
    """Rows of many ranks; those of one node of the same table are printed too, and count in no bar."""
    one, many = data / "network" / "nccl_one_node.csv", data / "network" / "nccl_tests_scale.csv"
    if not (one.exists() and many.exists()):
        return []
    nodes, made = read_measured(one), []
    for series in read_measured(many):
        machine = kind_of_machine(series.machine, list(dict.fromkeys(each.machine for each in nodes)))
        told = public(machine) if machine else None
        if machine and told:
            made += _scaled(series, machine, told, [each for each in nodes if each.machine == machine])
        else:
            print(f"left out: {series.name}: {machine or 'its machine'} has no rows of one node, or no public figures")
    return made


def _scaled(series: Series, machine: str, told: Public, nodes: Sequence[Series]) -> list[Said]:
    newest = max((each.library for each in nodes), key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
    counts = {each.ranks for each in nodes if each.library == newest and each.ranks <= series.per_node}
    used = [each for each in nodes if each.library == newest and each.ranks == max(counts, default=0)]
    if series.collective not in {each.collective for each in used}:
        print(f"left out: {series.name}: no rows of it on one node of {machine}")
        return []
    found = fit(used, wanted(machine))[0]
    between = "reduce" if "SHARP" in series.machine else "forward"
    fabric = fabric_of(found, series.ranks, series.per_node, told.card_bytes_per_s, between)
    twin, lines = Twin(fabric), straight(used)
    try:
        twin.collective(series.collective, 1 << 30, algorithm="library", ranks=range(series.ranks))
    except BadInput as error:
        print(f"left out: {series.name}: {error}")
        return []
    asked = work("ring", series.collective, series.ranks) or work("exchange", series.collective, series.ranks)
    assert asked
    start_s, step_s, byte_s = lines[series.collective]
    case = f"{series.machine}: {series.ranks} ranks from rows of {max(counts)}"
    return [
        Said(
            case if nbytes >= SCALED and series.ranks > max(counts) else f"({case}, not in the bar)",
            f"{series.machine} {series.collective} of {series.ranks}, {nbytes} B",
            seconds,
            twin.collective(series.collective, nbytes, algorithm="library", ranks=range(series.ranks)).seconds,
            start_s + asked.steps * step_s + asked.moved * nbytes * byte_s,
            False,
        )
        for nbytes, seconds in series.points
    ]


def a_line(rows: Sequence[TokenRow]) -> Callable[[TokenRow], float]:
    """A launch and seconds for each byte that leaves (or token, where none does), by least squares."""

    def amount(row: TokenRow) -> float:
        return row.tokens * (row.load.remote_bytes or 1.0)

    matrix = np.array([(1 / row.seconds, amount(row) / row.seconds) for row in rows])
    start_s, each_s = bounded(matrix, np.ones(len(rows)), np.zeros(2)).tolist()
    return lambda row: start_s + amount(row) * each_s


def predicted(
    rows: Sequence[TokenRow], found: Sequence[TokenCalibration], used: Sequence[TokenRow], case: str
) -> list[Said]:
    known = {(each.machine, each.name): each for each in found}
    lines = {each.name: a_line([row for row in used if row.name == each.name]) for each in found}
    made = []
    for row in rows:
        law = known.get((row.machine, row.name))
        if law:
            text = (
                f"{row.machine} {row.name}, {row.units} units, {row.tokens} tokens of {row.hidden} x "
                f"{row.value_bytes:g} B to {row.topk} of {row.experts}"
            )
            made.append(Said(case, text, row.seconds, law.seconds(row), lines[row.name](row), row in used))
    return made


def moe(data: Path) -> tuple[list[Said], list[Row]]:
    """Each rank count from the others; and where one-sided kernels begin to win, measured and said."""
    path = data / "network" / "gb200_moe_alltoall.csv"
    every = read_tokens(path) if path.exists() else []
    said: list[Said] = []
    crossings: list[Row] = []
    for machine in dict.fromkeys(row.machine for row in every):
        rows = [row for row in every if row.machine == machine]
        told = public(machine)
        link = told.link_bytes_per_s if told else 900e9
        for ranks in sorted({row.units for row in rows}):
            rest = [row for row in rows if row.units != ranks]
            if not rest:
                print(f"left out: {machine}, of which there is one rank count, {ranks}")
                continue
            found = fit_tokens(rest, link)
            said += predicted(
                [row for row in rows if row.units == ranks], found, rest, f"{machine}, {ranks} ranks left out"
            )
            crossings += _crossings([row for row in rows if row.units == ranks], found, machine, ranks)
    return said, crossings


def _crossings(rows: Sequence[TokenRow], found: Sequence[TokenCalibration], machine: str, ranks: int) -> list[Row]:
    """Tokens from which on dispatch and combine together are faster one-sided, measured and said."""
    law = {each.name: each for each in found}
    took: dict[tuple[str, float], dict[str, dict[int, tuple[float, float]]]] = {}
    for row in rows:
        if row.phase in ("dispatch", "combine") and row.name in law:
            # A combine is bfloat16 whatever was dispatched: it stands beside every dispatch of its kernel.
            by = took.setdefault((row.kernel, row.value_bytes if row.phase == "dispatch" else 0.0), {})
            by.setdefault(row.phase, {})[row.tokens] = (row.seconds, law[row.name].seconds(row))
    one = _whole(took, "OneSided")
    two = _whole(took, "TwoSided")
    made = []
    for sent in sorted(one.keys() & two.keys()):
        both = sorted(one[sent].keys() & two[sent].keys())
        measured, said = (_first([(t, two[sent][t][i] - one[sent][t][i]) for t in both]) for i in (0, 1))
        if measured and said:
            ratio = max(measured / said, said / measured)
            case = f"{machine}, {ranks} ranks left out, {sent:g} B a value: one-sided wins from {said} tokens"
            made.append(
                Row(
                    "twin.moe_a2a_tokens",
                    case,
                    ratio,
                    "x",
                    "measured",
                    None,
                    None,
                    bar="<= 2",
                    note=f"measured: {measured}",
                )
            )
    return sorted(made, key=lambda row: -(row.value or 0))


def _whole(
    took: dict[tuple[str, float], dict[str, dict[int, tuple[float, float]]]], side: str
) -> dict[float, dict[int, tuple[float, float]]]:
    """Dispatch and combine together, by bytes of a dispatched value and tokens."""
    back = {
        tokens: seconds
        for (kernel, _), phases in took.items()
        if side in kernel
        for tokens, seconds in phases.get("combine", {}).items()
    }
    return {
        sent: {t: (s[0] + back[t][0], s[1] + back[t][1]) for t, s in phases["dispatch"].items() if t in back}
        for (kernel, sent), phases in took.items()
        if side in kernel and "dispatch" in phases
    }


def _first(gains: Sequence[tuple[int, float]]) -> int | None:
    """The tokens from which on there is a gain: where the fewest sizes contradict it; None if there never is."""
    if not any(gain > 0 for _, gain in gains):
        return None
    wrong = {
        tokens: sum(gain > 0 for other, gain in gains if other < tokens)
        + sum(gain <= 0 for other, gain in gains if other >= tokens)
        for tokens, _ in gains
    }
    return min(wrong, key=lambda tokens: (wrong[tokens], tokens))


def deepep(data: Path) -> list[Said]:
    """More nodes than two, from one and two."""
    path = data / "network" / "deepep.csv"
    every = [row for row in (read_tokens(path) if path.exists() else []) if not row.phase.endswith("notify")]
    far = [row for row in every if row.units > 1]
    said: list[Said] = []
    for machine in dict.fromkeys(row.machine for row in far):
        # `h100_or_h200` stands for both: of one node, the first's rows are taken.
        first = machine.split("_or_")[0]
        shapes = {(row.hidden, row.topk, row.experts) for row in far if row.machine == machine}
        near = [
            TokenRow(machine, *[getattr(row, name) for name in list(TokenRow.__dataclass_fields__)[1:]])
            for row in every
            if row.units == 1 and row.machine.startswith(first) and (row.hidden, row.topk, row.experts) in shapes
        ]
        own = [row for row in far if row.machine == machine]
        used = [*near, *(row for row in own if row.units <= NODES)]
        told = public(first)
        if not any(row.units > 1 for row in used):
            print(f"left out: DeepEP on {machine}, of which there are no rows of up to {NODES} nodes")
            continue
        found = fit_tokens(used, told.card_bytes_per_s if told else 50e9, nodes=True)
        for nodes in sorted({row.units for row in own}):
            rows = [row for row in own if row.units == nodes]
            said += predicted(
                rows, found, [row for row in used if row.units > 1], f"{machine}, {nodes} nodes from 1 and 2"
            )
    return said


def main() -> None:
    args = arguments(__doc__ or "", with_data=True)
    data = Path(args.data) if args.data else DATA
    report = Report("collectives of many ranks, and MoE exchanges")
    many = scaled(data)
    exchanged, crossings = moe(data)
    nodes = deepep(data)
    for title, rows in (("many ranks", many), ("MoE exchange", exchanged), ("DeepEP", nodes)):
        print(f"{title}:")
        for row in rows:
            print(row.text)
    summed(report, "twin.scale_up", [row for row in many if not row.case.startswith("(")], "<= 15")
    summed(report, "twin.scale_others", [row for row in many if row.case.startswith("(")], "")
    summed(report, "twin.moe_a2a", exchanged, "<= 15")
    for each in crossings:
        report.add(each)
    summed(report, "twin.deepep", nodes, "<= 15")
    if not report.rows:
        print(f"no tables of collectives of many ranks, nor of MoE exchanges, in {data}")
    report.finish(args.json)


if __name__ == "__main__":
    main()
