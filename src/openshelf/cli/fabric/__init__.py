"""openshelf fabric: look at the hardware as data: show, check, diff, schema, compare, fit."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf.cli._arguments import add_files, add_json, output_file
from openshelf.cli._screen import console, printable
from openshelf.cli.fabric.fit import add_fit

if TYPE_CHECKING:
    from openshelf.fabric import Fabric

_NAME = "a preset, a YAML file, or `local` (what openshelf probe wrote)"
_EPILOG = """\
examples:
  openshelf fabric show                              the fabrics there are
  openshelf fabric ls generators                     what a topology may be, with every parameter
  openshelf fabric show gb200-nvl72 --svg nvl72.svg  a summary and a picture
  openshelf fabric check my.yaml                     mistakes by line and column; what is assumed
  openshelf fabric diff dgx-h100-ib dgx-h100-roce    what differs
  openshelf fabric schema > fabric.json              the file's format, as a JSON schema
  openshelf fabric compare --svg compare.svg         loads and stores against messages on the same wires
  openshelf fabric derived                           published figures that follow from others, computed
  openshelf fabric fit *.txt --fabric dgx-h100-ib --output fit.yaml  calibrate on nccl-tests' output"""


_LISTS = ("presets", "generators", "media", "switches", "protocols")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "fabric",
        help="the hardware as data",
        description="Shows, checks and compares fabrics: hardware described in YAML files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    show = parts.add_parser("show", help="a summary", description="Shows a fabric; without a name, lists the presets.")
    add_files(show, "fabric", nargs="?", help=_NAME)
    show.add_argument("--svg", type=output_file, metavar="PATH", help="write a picture of the topology")
    show.set_defaults(run=run_show)
    lists = parts.add_parser(
        "ls",
        help="what a fabric may name",
        description="Lists the media, switches, protocols and presets that come with the package, or the generators of "
        "topologies with their parameters.",
    )
    lists.add_argument("what", nargs="?", choices=_LISTS, default="presets", help="of what (presets)")
    lists.set_defaults(run=run_ls)
    check = parts.add_parser("check", help="is the file valid", description="Checks a fabric; lists what is assumed.")
    add_files(check, "fabric", help=_NAME)
    check.set_defaults(run=run_check)
    diff = parts.add_parser("diff", help="what differs", description="Shows what differs between two fabrics.")
    add_files(diff, "one", help=_NAME)
    add_files(diff, "other", help=_NAME)
    diff.set_defaults(run=run_diff)
    schema = parts.add_parser(
        "schema", help="the JSON schema", description="Prints the JSON schema of a fabric's file."
    )
    schema.set_defaults(run=run_schema)
    fitting = add_fit(parts)
    wires = parts.add_parser(
        "compare",
        help="memory against message semantics",
        description="What bytes cost by loads and stores and by messages on the same wires, 8 B to 1 GiB; modelled.",
    )
    wires.add_argument("--protocols", metavar="NAMES", help="separated by commas")
    wires.add_argument("--bandwidth", type=float, metavar="BYTES_PER_S", default=50e9, help="raw, each way (50e9)")
    wires.add_argument("--length", type=float, metavar="M", default=20.0, help="of all wires together (20)")
    wires.add_argument("--medium", default="optics-dsp", help="(optics-dsp)")
    wires.add_argument("--switches", type=int, default=1, help="on the way (1), of 240 ns each")
    wires.add_argument("--access", choices=("load", "store"), default="load", help="fetch bytes, or push them (load)")
    wires.add_argument("--pieces", type=int, default=1, help="so many of each size, from scattered places (1)")
    wires.add_argument("--svg", type=output_file, metavar="PATH", help="write a plot")
    wires.set_defaults(run=run_compare)
    following = parts.add_parser(
        "derived",
        help="published figures, computed",
        description="Published figures that follow from others, computed from their inputs; misses are marked.",
    )
    following.set_defaults(run=run_derived)
    for one in (show, lists, check, diff, schema, fitting, wires, following):
        add_json(one)


def run_show(args: argparse.Namespace) -> int:
    from openshelf.fabric import Fabric, presets, summary
    from openshelf.show import fabric_svg

    if args.fabric is None:
        notes = {name: Fabric.load(name).note for name in presets()}
        print(json.dumps(notes) if args.json else "\n".join(f"{name:18} {note}" for name, note in notes.items()))
        return 0
    fabric = Fabric.load(args.fabric)
    if args.svg:
        Path(args.svg).write_text(fabric_svg(fabric), encoding="utf-8")
    found = summary(fabric)
    if args.json:
        print(json.dumps(found))
    else:
        _print_summary(found)
    return 0


def run_ls(args: argparse.Namespace) -> int:
    from openshelf.cli.fabric.lists import listed, print_list

    found = listed(args.what)
    if args.json:
        print(json.dumps(found))
    else:
        print_list(args.what, found)
    return 0


def run_check(args: argparse.Namespace) -> int:
    from openshelf.fabric import Fabric, bill, used_figures

    fabric = Fabric.load(args.fabric)
    found = used_figures(fabric)
    assumed = [
        {"figure": where, "value": each.value, "note": each.note} for where, each in found if each.source == "assumed"
    ]
    unknown = {}
    if fabric.topology:
        whole = bill(fabric)
        unknown = {key: whole.unknown(key) for key in ("watts", "usd", "failures_per_year") if whole.unknown(key)}
    if args.json:
        print(json.dumps({"valid": True, "figures": len(found), "assumed": assumed, "unknown": unknown}))
        return 0
    print(printable(f"{fabric.name} is valid: {len(found)} figures, {len(assumed)} of them assumed"))
    for each in assumed:
        print(printable(f"  assumed: {each['figure']} = {each['value']:g}  {each['note']}"))
    for key, pieces in unknown.items():
        print(printable(f"  not known: {key} of {', '.join(pieces)}"))
    return 0


def run_diff(args: argparse.Namespace) -> int:
    from openshelf.fabric import Fabric, differences, summary

    one, other = Fabric.load(args.one), Fabric.load(args.other)
    parts = differences(one.plain(), other.plain())
    costs = differences(_headline(one, summary(one)), _headline(other, summary(other)))
    costs = [each for each in costs if None not in each[1:]]  # what one side does not know is no difference
    if args.json:
        keys = ("what", args.one, args.other)
        rows = {"file": parts, "outcome": costs}
        print(json.dumps({name: [dict(zip(keys, row, strict=True)) for row in found] for name, found in rows.items()}))
        return 0
    for title, found in (("in the files", parts), ("in what comes out (modelled)", costs)):
        print(f"{title}:")
        for where, before, after in found:
            print(printable(f"  {where}: {_short(before)} -> {_short(after)}"))
    return 0


def run_schema(args: argparse.Namespace) -> int:
    from openshelf.fabric import Fabric

    print(json.dumps(Fabric.schema(), indent=None if args.json else 2))
    return 0


def run_compare(args: argparse.Namespace) -> int:
    from openshelf.cli.fabric.compare import print_compare
    from openshelf.errors import BadInput, UnknownName
    from openshelf.fabric import USUAL, Wires, media, same_wires
    from openshelf.show import same_wires_svg

    if args.medium not in media():
        raise UnknownName(f"no medium is named {args.medium!r}; there is {', '.join(media())}")
    if args.bandwidth <= 0 or args.length <= 0 or args.switches < 0 or args.pieces < 1:
        raise BadInput("expected a bandwidth and a length above 0, 0 or more switches, and 1 piece or more")
    names = tuple(args.protocols.split(",")) if args.protocols else USUAL
    given = Wires(args.bandwidth, args.length, args.medium, args.switches)
    priced = same_wires(names, given, args.access, pieces=args.pieces)
    many = f"{args.pieces} pieces of each size; " if args.pieces > 1 else ""
    title = (
        f"{many}"
        f"{args.bandwidth / 1e9:g} GB/s, {args.length:g} m of {args.medium}, {args.switches} switches: "
        f"{given.path_s * 1e9:.0f} ns one way; {'bytes are fetched' if args.access == 'load' else 'bytes are pushed'}"
    )
    if args.svg:
        Path(args.svg).write_text(same_wires_svg(priced, title), encoding="utf-8")
    if args.json:
        print(json.dumps({"wires": vars(given) | {"path_s": given.path_s}, "rows": [vars(each) for each in priced]}))
    else:
        print_compare(priced, title)
    return 0


def run_derived(args: argparse.Namespace) -> int:
    from openshelf.cli.fabric.compare import print_derived
    from openshelf.fabric import derived

    if args.json:
        print(json.dumps([vars(each) | {"error": each.error, "met": each.met} for each in derived()]))
    else:
        print_derived(derived())
    return 0


def _headline(fabric: Fabric, found: dict[str, Any]) -> dict[str, Any]:
    """What a buyer compares."""
    if fabric.topology is None:
        return {}
    ways = {f"{way['to']}, {size} bytes, s": s for way in found["ways"] for size, s in way["seconds"].items()}
    watts = found["bill"]["watts"]
    whole = None if watts["unknown"] else watts["known"]
    return {"endpoints": found["topology"]["endpoints"], "watts": whole, **ways}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _print_summary(found: dict[str, Any]) -> None:
    from rich.table import Table

    from openshelf.show import format_time
    from openshelf.space import format_size

    screen = console()
    counts = ", ".join(f"{count} {source}" for source, count in found["figures"].items())
    screen.print(f"{found['name']}: {found['note']}", markup=False, highlight=False)
    screen.print(f"figures: {counts}", markup=False, highlight=False)
    places = Table("place", "tier", "capacity", "read", "latency")
    for place in found["places"]:
        read = f"{place['read_bandwidth_bytes_per_s'] / 1e9:,.4g} GB/s"
        size = f"{place['capacity_bytes'] / 1e9:,.4g} GB"
        places.add_row(place["name"], place["tier"], size, read, format_time(place["latency_s"]))
    screen.print(places)
    if "topology" not in found:
        return
    shape = found["topology"]
    screen.print(f"{shape['name']}: {shape['endpoints']:,} endpoints, {shape['memories']} of them memory only")
    ways = Table(
        "modelled, from endpoint 0", "semantics", *(format_size(int(n)) for n in found["ways"][0]["seconds"]), "source"
    )
    for way in found["ways"]:
        ways.add_row(
            f"to the {way['to']} ({way['endpoint']}), {way['hops']} hops", way["semantics"],
            *(format_time(s) for s in way["seconds"].values()), way["source"],
        )  # fmt: skip
    screen.print(ways)
    for text in dict.fromkeys(text for way in found["ways"] for text in way["beyond"]):
        screen.print(f"beyond what is known: {text}", markup=False, highlight=False)
    pieces = Table("piece", "count", "W", "USD", "failures a year", "source")
    for item in found["bill"]["items"]:
        cells = (_known(item[key]) for key in ("watts", "usd", "failures_per_year"))
        pieces.add_row(item["what"], f"{item['count']:,.0f}", *cells, item["source"] or "unknown")
    totals = (_known(found["bill"][key]["known"]) for key in ("watts", "usd", "failures_per_year"))
    pieces.add_row("all that is known", "", *totals, "")
    screen.print(pieces)
    for key in ("watts", "usd", "failures_per_year"):
        if found["bill"][key]["unknown"]:
            text = f"not known, and not in the sum: {key} of {', '.join(found['bill'][key]['unknown'])}"
            screen.print(text, markup=False, highlight=False)


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.4g}" if value < 100 else f"{value:,.0f}"
