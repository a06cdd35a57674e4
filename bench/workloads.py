"""Workloads in virtual time against measured ones: operators, training, serving. All figures are on rows that were not
fitted; an id's value is the worst of its cases. Each part is a file of work/, and says what it leaves out.

The data is read from beside the repository, or from where OPENSHELF_DATA or --data says. Machines, models and shapes
are those that the data has. `here` and `ttft` are runs on this machine, which should be idle; OPENSHELF_BENCH_SEED
draws them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from kit.data import DATA
from kit.side_by_side import Report, Row
from work import here, here_ttft, operators, serving, serving_logs, serving_pool, speed, training

PARTS: dict[str, Callable[[Path, bool], Iterator[Row]]] = {
    "operators": operators.rows,
    "training": training.rows,
    "logs": serving_logs.rows,
    "serving": serving.rows,
    "pool": serving_pool.rows,
    "speed": speed.rows,
    "here": here.rows,
    "ttft": here_ttft.rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows: under 50 s")
    parser.add_argument("--json", metavar="PATH", help="write the rows there, too")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the measured rows")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these parts")
    args = parser.parse_args()
    report = Report("workloads in virtual time")
    for name, part in PARTS.items():
        if args.only is None or name in args.only:
            for row in part(args.data, args.quick):
                report.add(row)
    report.finish(args.json)


if __name__ == "__main__":
    main()
