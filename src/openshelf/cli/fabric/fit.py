"""openshelf fabric fit: calibrates a library's laws on measured rows, and says how far they carry."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from openshelf.cli._arguments import output_file
from openshelf.cli._screen import console
from openshelf.show import format_time
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.fabric import Calibration, Fabric, Series, TokenCalibration, TokenRow, Wanted

_ABOUT = """\
Fits launch, step, rate and a rank's own work in each regime (LL, LL128, simple, in-switch, one- and two-sided) to the
output of nccl-tests (text), to JSON series, or to CSV tables of collectives and MoE exchanges, whatever rank counts
they have. Says which constants the rows determine, and the error on each rank count when it is left out. --output
writes a library that a fabric includes; the twin goes by it. A ledger beside it keeps what went into every fit."""


def add_fit(parts: Any) -> argparse.ArgumentParser:
    """The command's arguments."""
    parser: argparse.ArgumentParser = parts.add_parser(
        "fit",
        help="calibrate on measured collectives",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="output of nccl-tests, JSON, or CSV tables")
    parser.add_argument("--machine", help="what to call the machine of text files, or which one of a table's")
    parser.add_argument("--library", help="which library or kernel of a table's, such as 'nccl 2.29.2'")
    parser.add_argument("--collective", help="of text files that do not name it, such as all_reduce")
    parser.add_argument("--fabric", metavar="NAME", help="whose wires are meant: their public rates bound the fit")
    parser.add_argument("--link", type=float, metavar="BYTES_PER_S", help="a link's public rate, without --fabric")
    parser.add_argument("--bus", action="store_true", help="accelerators share a bus, such as PCIe, and no switch")
    parser.add_argument("--hold", type=int, nargs="+", default=[], metavar="RANKS", help="rank counts only predicted")
    parser.add_argument(
        "--output", type=output_file, metavar="PATH", help="write the library as YAML that a fabric can include"
    )
    parser.add_argument(
        "--ledger", type=output_file, metavar="PATH", help="append what went into it (default: OUTPUT.ledger.jsonl)"
    )
    parser.set_defaults(run=run_fit)
    return parser


def run_fit(args: argparse.Namespace) -> int:
    from openshelf.errors import BadInput
    from openshelf.fabric import Fabric, fit, fitted, ledger, report

    measured, tokens = _read(args)
    if not measured and not tokens:
        raise BadInput(f"no rows of machine {args.machine!r} and library {args.library!r} in {', '.join(args.files)}")
    fabric = Fabric.load(args.fabric) if args.fabric else None
    wanted, wires = _known(fabric, args.link, args.bus)
    found: dict[str, Any] = {"calibrations": [], "rows": [], "left_out": [], "not_compared": []}
    calibrations: list[Calibration] = []
    if measured:
        found = report(measured, wanted, args.hold)
        calibrations = fit(measured, wanted, args.hold)
    phases, lines = _phases(tokens, wanted, args.hold)
    found["phases"] = [{**vars(each), "phase": vars(each.phase)} for each in phases]
    found["ledger"] = ledger(calibrations, found["left_out"]) + lines
    found["left_out"] += [{"calibration": line["calibration"], **each} for line in lines for each in line["left_out"]]
    if args.output:
        Path(args.output).write_text(fitted(calibrations, phases, wires).yaml(), encoding="utf-8")
    if args.output or args.ledger:
        path = Path(args.ledger or f"{args.output}.ledger.jsonl")
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in found["ledger"])
    if args.json:
        print(json.dumps(found))
    else:
        _print(found)
    return 0


def _read(args: argparse.Namespace) -> tuple[list[Series], list[TokenRow]]:
    from openshelf.fabric import is_token_table, read_measured, read_tokens

    measured: list[Series] = []
    tokens: list[TokenRow] = []
    for file in args.files:
        if is_token_table(file):
            tokens += read_tokens(file)
        else:
            measured += read_measured(file, args.collective, args.machine or "machine")
    measured = [
        each
        for each in measured
        if (not args.machine or each.machine == args.machine) and (not args.library or each.library == args.library)
    ]
    return measured, [row for row in tokens if not args.machine or row.machine == args.machine]


def _known(fabric: Fabric | None, link: float | None, bus: bool) -> tuple[Wanted, dict[str, str]]:
    """What is known beforehand, and the wires that are meant by `within` and `between`."""
    from openshelf.fabric import Wanted
    from openshelf.twin import domain, reduces_inside

    if fabric is None:
        return Wanted(link, on_a_bus=bus), {}
    found = domain(fabric)
    rates = {each.name: each.total_bytes_per_s for each in fabric.wires}
    inner = min(found.inside, key=lambda wire: rates[wire])
    wires = {"within": inner}
    outer = [wire for wire in found.beyond if wire not in found.inside]
    if outer:
        wires["between"] = min(outer, key=lambda wire: rates[wire])
    return Wanted(rates[inner], reduces_inside(fabric), on_a_bus=bus), wires


def _phases(
    tokens: list[TokenRow], wanted: Wanted, hold: list[int]
) -> tuple[list[TokenCalibration], list[dict[str, Any]]]:
    from openshelf.fabric import report_tokens

    phases: list[TokenCalibration] = []
    lines: list[dict[str, Any]] = []
    for nodes, link in ((False, wanted.link_bytes_per_s or 900e9), (True, 50e9)):
        rows = [row for row in tokens if row.over_nodes == nodes]
        if rows:
            found, ledger = report_tokens(rows, link, nodes, hold)
            phases, lines = phases + found, lines + ledger
    return phases, lines


def _print(found: dict[str, Any]) -> None:
    """The report of a fit, as tables."""
    screen = console()
    constants = Table("calibrated", "regime", "constant", "value", "rows", "determined")
    for each in found["calibrations"]:
        for one in each["constants"]:
            if one["rows"]:
                value = _value(one["part"], one["value"])
                known = "yes" if one["determined"] else "no"
                constants.add_row(_name(each), one["regime"], _WORDS[one["part"]], value, str(one["rows"]), known)
    if found["calibrations"]:
        screen.print(constants)
    rows = Table("series", "bytes", "measured", "model", "error", "regime", "use", "flags")
    for row in found["rows"]:
        rows.add_row(
            row["series"], format_size(row["nbytes"]), format_time(row["measured_s"]), format_time(row["modelled_s"]),
            f"{row['error']:+.1%}", row["regime"], row["use"], "; ".join(row["flags"]),
        )  # fmt: skip
    if found["rows"]:
        screen.print(rows)
    phases = Table("phase", "launch", "hop", "token", "rate", "rows", "residual")
    for each in found["phases"]:
        phase = each["phase"]
        phases.add_row(
            each["name"], format_time(phase["launch_s"]), format_time(phase["hop_s"]), format_time(phase["token_s"]),
            f"{1e-9 / phase['s_per_byte']:.4g} GB/s", str(each["rows"]), f"{each['residual']:.1%}",
        )  # fmt: skip
    if found["phases"]:
        screen.print(phases)
    for line in _lines(found):
        screen.print(line, markup=False, highlight=False)


_WORDS = {"launch_s": "launch", "step_s": "step", "s_per_byte": "rate", "own_s_per_byte": "own rate"}


def _name(each: dict[str, Any]) -> str:
    return " ".join(part for part in (each["machine"], each["library"], f"{each['where']} nodes") if part)


def _value(part: str, value: float) -> str:
    if part in ("launch_s", "step_s"):
        return format_time(value)
    return f"{1e-9 / value:.4g} GB/s" if value > 0 else "none"


def _lines(found: dict[str, Any]) -> list[str]:
    made = []
    for each in found["calibrations"]:
        made.append(
            f"{_name(each)}: {each['rows']} rows, sha256 {each['rows_sha256'][:16]}, residual {each['residual']:.1%}"
        )
        made += [f"note: {note}" for note in each["notes"]]
    for each in found["left_out"]:
        if each["median_error"] is None:
            made.append(f"{each['calibration']}: {each['ranks']}, left out: the other rows do not say")
            continue
        text = f"median absolute error {each['median_error']:.1%}, {each['rows']} rows"
        how = "held back" if each.get("held_back") else "left out"
        made.append(f"{each['calibration']}: {each['ranks']} ranks, {how} and predicted from the others: {text}")
    made += [f"not compared: {name}" for name in found["not_compared"]]
    held = [abs(row["error"]) for row in found["rows"] if row["use"] == "predicted"]
    if held:
        made.append(f"held back and predicted: median absolute error {median(held):.1%}, {len(held)} rows")
    return made
