"""`python -m tests.models`: tries every architecture, and writes the table of what became of each."""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

from tests.models.outcomes import KINDS, rows_of
from tests.models.processes import outcomes
from tests.models.table import Table, markdown, read, summary, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument(
        "--json", type=Path, help="write the table here; rows that are there stay if they are not tried"
    )
    parser.add_argument("--md", type=Path, help="write the page here")
    parser.add_argument("--only", default="", help="names that match this, as in 'causal:.*|net:lstm'")
    parser.add_argument("--kind", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--left", action="store_true", help="only what the file of --json does not have")
    parser.add_argument("--seconds", type=float, default=300, help="for each model and kind")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    table: Table = read(asked.json) if asked.json and asked.json.exists() else {}
    rows = [row for row in rows_of(asked.kind.split(",")) if re.search(asked.only, row[1])]
    if asked.left:
        rows = [(kind, name) for kind, name in rows if kind not in table.get(name, {})]
    random.Random(0).shuffle(rows)  # a run that is ended has tried some of everything
    for number, ((kind, name), found) in enumerate(outcomes(rows, asked.seconds, asked.processes), 1):
        table.setdefault(name, {})[kind] = found
        print(f"{number}/{len(rows)} {kind} {name}: {found.what}{': ' if found.why else ''}{found.why}", flush=True)
        if asked.json and (number % 20 == 0 or number == len(rows)):
            write(asked.json, table)
    if asked.md:
        asked.md.write_text(markdown(table, len({name for _, name in rows_of(KINDS)})))
    print(summary(table))
    return int(any(one.what in ("wrong", "raw") for kinds in table.values() for one in kinds.values()))


if __name__ == "__main__":
    sys.exit(main())
