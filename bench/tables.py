"""Tables: rows read by address, beside torch, FBGEMM and other stores; over processes, hosts and flash.

Each part is a file of lookups/, and says what it measures. Ids are drawn as at Meta, then by Zipf's law, then evenly;
an id's value is the worst of its cases. A part whose peer or right is missing says so in its rows, and the others run.
--case measures some cases of the part `bags` only: all of them with 10 M rows take some minutes.
"""

from __future__ import annotations

import argparse
import importlib
import traceback
from collections.abc import Iterator

from rich.progress import track

from kit.servers import Absent
from kit.side_by_side import Report, Row
from lookups.asked import CASES, Asked
from openshelf.errors import NotPermitted

PARTS = {  # and what each is for; it may have more rows
    "bags": ("tables.x_torch", "tables.x_fbgemm", "tables.consistent", "tables.random_read"),
    "processes": ("tables.scale",),
    "stores": ("tables.x_redis",),
    "hosts": ("tables.pipelined", "tables.hot", "tables.early", "tables.fresh_host_s", "tables.fresh_hosts_s"),
    "keys": ("tables.dynamic", "tables.day"),
    "flash": ("tables.flash", "tables.flash_x_rocksdb"),
    "engram": ("tables.engram",),
}


def rows_of(part: str, asked: Asked) -> Iterator[Row]:
    """Of a part that cannot run here, the reason in each of its rows."""
    try:
        yield from importlib.import_module(f"lookups.{part}").rows(asked)
    except (Absent, NotPermitted, ModuleNotFoundError) as why:
        for id in PARTS[part]:
            yield Row(id, "", None, "", "", None, None, note=f"not measured: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows: under 50 s")
    parser.add_argument("--json", metavar="PATH", help="also write the rows as JSON")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these parts")
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES), help="of bags, these cases")
    args = parser.parse_args()
    report, failed = Report("Tables"), []
    for part in track([each for each in PARTS if args.only is None or each in args.only], "tables"):
        try:
            for row in rows_of(part, Asked(args.quick, tuple(args.case))):
                report.add(row)
        except Exception:  # the others run, and this program fails at its end
            traceback.print_exc()
            failed.append(part)
    report.finish(args.json)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
