"""`openshelf probe`: measure this machine and write what was found as a Fabric."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf.cli._arguments import add_json
from openshelf.cli._screen import console

if TYPE_CHECKING:
    from openshelf.fabric import Fabric, Figure

_DESCRIPTION = """\
Measure this machine and write it as a YAML file that Fabric.load("local") reads: memory bandwidth
and latency for 4 KiB and 2 MiB pages, memcpy, latency under load, disk (O_DIRECT), GEMM and
loopback TCP. Takes under a minute on an idle machine; whatever else runs meanwhile is in the
figures."""

_EPILOG = """\
examples:
  openshelf probe                              measure, write the user's file, show a table
  openshelf probe --quick --disk-dir /data     fewer repetitions, and the disk under /data
  openshelf probe --json > machine.json        the same as JSON
  openshelf probe --schema > fabric.json       the format, as a JSON schema; measures nothing

OPENSHELF_FABRIC, if set, overrides what Fabric.load("local") reads, not where this command writes."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "probe",
        help="measure this machine",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="YAML file to write, or - to print it (default: openshelf/local.yaml in $XDG_CONFIG_HOME or ~/.config)",
    )
    add_json(parser, "print the result as JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="under 15 seconds, with noisier figures")
    parser.add_argument(
        "--disk-dir",
        metavar="DIR",
        default=".",
        help="folder on the disk to measure, in a temporary file (default: the current one)",
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the file and measure nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    # Imported here so that other commands do not wait for it.
    from openshelf.fabric import Fabric, local_path

    if args.schema:
        print(json.dumps(Fabric.schema(), indent=2))
        return 0
    fabric = _measure(Path(args.disk_dir), args.quick)
    path = None if args.output == "-" else Path(args.output) if args.output else local_path()
    if path is None and not args.json:
        sys.stdout.write(fabric.yaml())
        return 0
    if path is not None:
        fabric.save(path)
        if args.json:
            print(f"written to {path}", file=sys.stderr)
    if args.json:
        print(json.dumps(fabric.plain(), indent=2))
    else:
        _show(fabric, f"written to {path}")
    return 0


def _measure(disk_dir: Path, quick: bool) -> Fabric:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from openshelf.fabric import FULL, QUICK, probe

    # On stderr, so that what is printed can go to a file; drawn seldom, since drawing takes a core's time.
    columns = (TextColumn("{task.description:34}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("starting", total=1.0)
        return probe(
            disk_dir=disk_dir,
            effort=QUICK if quick else FULL,
            progress=lambda what, share: bar.update(task, description=what, completed=share),
        )


def _show(fabric: Fabric, closing: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    # How each figure was got is in the file: here it would not fit beside it.
    table = Table("what", "figure", "value", title=escape(fabric.note), title_justify="left")
    for what, name, figure in _figures(fabric):
        table.add_row(what, _label(name), _readable(figure.value, name))
    for place in fabric.places:
        for point in place.loaded_latency.points if place.loaded_latency else ():
            load = _readable(point.load_bytes_per_s, "load_bytes_per_s")
            table.add_row(place.name, f"latency while others read {load}", _readable(point.latency_s, "latency_s"))
    screen = console()
    screen.print(table)
    for text in fabric.left_out:
        screen.print(f"left out: {text}", markup=False, highlight=False)
    screen.print(closing, markup=False, highlight=False, soft_wrap=True)


def _figures(fabric: Fabric) -> list[tuple[str, str, Figure]]:
    from openshelf.fabric import Figure

    def of(what: str, thing: Any) -> list[tuple[str, str, Figure]]:
        return [(what, name, value) for name, value in vars(thing).items() if isinstance(value, Figure)]

    rows = []
    for place in fabric.places:
        rows += of(place.name, place)
        for pages in place.other_pages:
            rows += of(f"{place.name}, {pages.page_bytes // 1024} KiB pages", pages)
    for link in fabric.links:
        rows += of(f"{link.name} link", link)
    for compute in fabric.compute:
        for gemm in compute.gemm:
            rows += of(f"{compute.name} {gemm.dtype}", gemm)
    return rows


def _label(name: str) -> str:
    """`read_bandwidth_bytes_per_s` without its unit: the table's values have their own."""
    for unit in ("_bytes_per_s", "_flop_per_s", "_bytes", "_s"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _readable(value: float, name: str) -> str:
    """A value with a unit people read; the file has base units only."""
    if name.endswith("_per_s"):
        unit = "FLOP/s" if "flop" in name else "B/s"
        return f"{value / 1e9:.4g} G{unit}"
    if name.endswith("_bytes"):
        return f"{value / 1e9:.4g} GB"
    if name.endswith("_s"):
        return f"{value * 1e9:.4g} ns" if value < 1e-6 else f"{value * 1e6:.4g} us"
    return f"{value:.3g}"
