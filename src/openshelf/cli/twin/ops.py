"""openshelf twin ops: tables of measured operators, laws fitted to them, and what they say of a shape."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf.cli._arguments import add_json, output_file
from openshelf.errors import BadInput

if TYPE_CHECKING:
    from openshelf.twin.ops import Operators, OpTable

_EPILOG = """\
examples:
  openshelf twin ops import gemm_perf.txt moe_perf.txt --out tables   AIConfigurator's columns, CSV or Parquet
  openshelf twin ops fit tables --out laws.yaml
  openshelf twin ops show                                             the laws that come with the package
  openshelf twin ops show h100_sxm --op gemm --shape m=4096,n=4096,k=4096 --table tables

More: docs/workloads.md."""


def add(parts: Any) -> None:
    parser = parts.add_parser(
        "ops",
        help="times of operators: tables, fitted laws, answers",
        description="Tables of measured operators, laws fitted to them, and what they say of a shape.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inner = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    one = _add(inner, "import", "check tables and write them in SI units, one file for each kind")
    one.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="a table, or a folder of tables")
    one.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to write them")
    one.set_defaults(run=run_import)
    two = _add(inner, "fit", "fit laws of few constants, with their error on shapes left out")
    two.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="a table, or a folder of tables")
    two.add_argument("--out", type=output_file, metavar="FILE", help="write the laws as YAML")
    two.add_argument("--source", default="", metavar="TEXT", help="where the tables are from, to be kept with the laws")
    two.set_defaults(run=run_fit)
    three = _add(inner, "show", "laws and tables, or the seconds of one operator and how they are known")
    three.add_argument("accelerator", nargs="?", help="such as h100_sxm (default: all that there are laws for)")
    three.add_argument("--op", help="gemm, attention, decode, mla, mla_decode or moe")
    three.add_argument("--shape", default="", metavar="NAME=VALUE,...", help="with --op: its sizes and words")
    three.add_argument("--table", type=Path, metavar="TABLE", help="a table, or a folder of tables")
    three.add_argument("--laws", type=Path, metavar="FILE", help="laws of `fit`, in the place of the package's")
    three.set_defaults(run=run_show)
    for each in (one, two, three):
        add_json(each)


def _add(inner: Any, name: str, does: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = inner.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
    return made


def _read(paths: list[Path]) -> list[OpTable]:
    from openshelf.twin.ops import read_folder, read_tables

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise BadInput(f"there is no {', '.join(missing)}; expected tables of operators, or folders of them")
    return [table for path in paths for table in (read_folder(path) if path.is_dir() else read_tables(path))]


def run_import(args: argparse.Namespace) -> int:
    from openshelf.twin.ops import write_table

    tables = _read(args.tables)
    args.out.mkdir(parents=True, exist_ok=True)
    written = {}
    for at, table in enumerate(tables):
        number = sum(other.kind is table.kind for other in tables[:at])
        path = args.out / f"{table.kind.name}{f'_{number}' if number else ''}.csv"
        write_table(table, path)
        written[str(path)] = len(table)
    if args.json:
        print(json.dumps(written))
    else:
        for path, count in written.items():
            print(f"{path}: {count} rows, times in seconds")
    return 0


def run_fit(args: argparse.Namespace) -> int:
    from openshelf.twin.ops import fit_laws, write_laws

    laws = fit_laws(_read(args.tables), args.source)
    if args.out:
        write_laws(laws, args.out)
    _print_laws(laws, args.json)
    return 0


def run_show(args: argparse.Namespace) -> int:
    from openshelf.twin.ops import LAWS, Operators, laws_of

    laws = args.laws or LAWS
    if args.op:
        operators = Operators.open(args.table, laws) if args.table else Operators(laws=laws)
        return _show_one(operators, args)
    if args.shape:
        raise BadInput("a shape is of an operator: name it with --op")
    found = laws_of(laws)
    if args.accelerator:
        found = {k: {args.accelerator: of[args.accelerator]} for k, of in found.items() if args.accelerator in of}
        if not found:
            raise BadInput(f"there are no laws for {args.accelerator!r}; `openshelf twin ops show` lists all")
    _print_laws(found, args.json)
    if args.table:
        for key, count in Operators.open(args.table).measured().items():
            print(f"table: {' '.join(key)}: {count} rows")
    return 0


def _show_one(operators: Operators, args: argparse.Namespace) -> int:
    from openshelf.show import format_time

    if not args.accelerator:
        raise BadInput("name an accelerator before the shape, such as h100_sxm")
    given = [each for each in args.shape.split(",") if each]
    wrong = [each for each in given if "=" not in each]
    if wrong:
        raise BadInput(f"a shape is given as NAME=VALUE; {wrong[0]!r} came")
    pairs = dict(each.split("=", 1) for each in given)
    shape = {name: float(value) if value.replace(".", "", 1).isdigit() else value for name, value in pairs.items()}
    found = operators.time(args.op, args.accelerator, **shape)
    if args.json:
        print(json.dumps({"seconds": found.seconds, "how": found.how, "error": found.error}))
    else:
        print(f"{format_time(found.seconds)}, {found.how}, about {100 * found.error:.0f} % off")
    return 0


def _print_laws(laws: Any, as_json: bool) -> None:
    from rich.table import Table

    from openshelf.cli._screen import console

    plain = {
        kind: {d: {n: {"slower": dict(law.slower), "error": law.error, "rows": law.rows, "source": law.source}
                   for n, law in of.items()} for d, of in devices.items()}
        for kind, devices in laws.items()
    }  # fmt: skip
    if as_json:
        print(json.dumps(plain))
        return
    table = Table("operator", "accelerator", "of", "times as long as at the rates as sold", "error", "rows", "from")
    for kind, devices in plain.items():
        for device, of in devices.items():
            for name, law in of.items():
                slower = ", ".join(
                    f"{part} {value:.3g}{' us' if part == 'launch' else ''}" for part, value in law["slower"].items()
                )
                error = f"{100 * law['error']:.0f} %"
                table.add_row(kind, device, name, slower, error, str(law["rows"]), law["source"])
    console().print(table)
