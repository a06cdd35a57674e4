"""openshelf tables: the embedding tables of a space."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table

from openshelf.cli._arguments import add_hosts, add_json, add_space
from openshelf.cli._screen import cell, console
from openshelf.space import Space, format_size, look
from openshelf.tables import Table as Rows
from openshelf.tables import describe, export_table, import_table, tables

_EPILOG = """\
The ending of a file says its format: .npy, .safetensors, or .pt and .pth (a state dict of torch).

examples:
  openshelf tables ls demo
  openshelf tables stat demo users
  openshelf tables import demo users model.safetensors --key emb.weight --dtype float16
  openshelf tables export demo users users.npy"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tables",
        help="the embedding tables of a space",
        description="Lists, describes, imports and exports the tables of a space.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = parts.add_parser("ls", help="list the tables", description="Lists the tables of a space.")
    stat = parts.add_parser("stat", help="describe a table", description="Shows a table's rows, sizes and counts.")
    taking = parts.add_parser("import", help="make a table from a file", description="Makes a table from a file.")
    giving = parts.add_parser("export", help="write a table to a file", description="Writes a table's rows to a file.")
    for one, run in ((listing, run_ls), (stat, run_stat), (taking, run_import), (giving, run_export)):
        add_space(one, "space")
        if one is not listing:
            one.add_argument("table", help="its name")
        add_hosts(one)
        add_json(one)
        one.set_defaults(run=run)
    for one in (taking, giving):
        one.add_argument("file", help="a file of rows")
    taking.add_argument("--key", help="which tensor of the file, where there are several")
    taking.add_argument("--dtype", help="float32, float16, bfloat16, int8 or int4 (default: that of the file)")
    giving.add_argument("--key", default="weight", help="the tensor's name in the file (default weight)")


def run_ls(args: argparse.Namespace) -> int:
    with look(args.space, hosts=args.hosts) as space:
        found = [describe(space, name) for name in tables(space)]
    if args.json:
        print(json.dumps(found))
        return 0
    shown = Table("table", "rows", "dim", "dtype", "optimizer", "bytes")
    for one in found:
        shown.add_row(
            cell(one["table"]), f"{one['rows']:,}", str(one["dim"]), one["dtype"], one["optimizer"]["kind"],
            format_size(one["bytes"]),
        )  # fmt: skip
    console().print(shown if found else "no tables in this space")
    return 0


def run_stat(args: argparse.Namespace) -> int:
    with look(args.space, hosts=args.hosts) as space:
        facts = describe(space, args.table)
    return _show(args, facts)


def run_import(args: argparse.Namespace) -> int:
    with Space.open(args.space, **({"hosts": args.hosts} if args.hosts else {})) as space:
        facts = import_table(space, args.table, args.file, key=args.key, dtype=args.dtype).stat()
    return _show(args, facts)


def run_export(args: argparse.Namespace) -> int:
    with look(args.space, hosts=args.hosts) as space:
        table = Rows.open(space, args.table)
        export_table(table, args.file, key=args.key)
        facts = table.stat()
    return _show(args, facts)


def _show(args: argparse.Namespace, facts: dict[str, Any]) -> int:
    if args.json:
        print(json.dumps(facts))
        return 0
    optimizer = facts["optimizer"]
    shown = Table(show_header=False)
    for label, value in (
        ("rows", f"{facts['rows']:,} of {facts['dim']} numbers, {facts['dtype']}"),
        ("room for", f"{facts['room']:,} rows in {facts['parts']} parts"),
        ("bytes", f"{format_size(facts['bytes'])}; {facts['row_bytes']} a row, {facts['state_bytes']} of state"),
        ("optimizer", f"{optimizer['kind']}, lr {optimizer['lr']:g}" if optimizer["lr"] else "none"),
        ("read", f"{facts['read_rows']:,} rows"),
        ("updated", f"{facts['updated_rows']:,} rows in {facts['steps']:,} updates"),
        ("interrupted", f"{facts['interrupted']:,} writers that died in an update"),
    ):
        shown.add_row(label, value)
    console().print(shown)
    return 0
