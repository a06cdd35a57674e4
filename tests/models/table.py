"""The table of all models: as JSON, and as docs/models.md."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from tests.models.outcomes import Outcome

Table = dict[str, dict[str, Outcome]]  # by model, then by kind of use

_HEAD = """\
# Models: what runs

`python -m tests.models --md docs/models.md` writes this page. It takes the architectures from
transformers' own tables, builds each from a tiny config with random weights, and compares what
Openshelf computes with plain PyTorch, bit for bit (with a `PooledCache`, up to rounding). Inference is
compared at three budgets: all the memory that the model needs, half of it, and the least that works.
Training is two steps of AdamW in half of the memory. *Pool* is a `PooledCache`; of models with an
encoder it is `encode`, which shares the encoder's work, bit for bit.

- *equal*: the results are the same.
- *refused*: Openshelf says why it cannot do it. It computes nothing then.
- *not built*: transformers makes no tiny model of it, or none that runs alone.
- *not compared*: plain PyTorch fails, or gives other results the second time.
"""


def read(path: Path) -> Table:
    found = json.loads(path.read_text())
    return {name: {kind: Outcome(*one) for kind, one in kinds.items()} for name, kinds in found.items()}


def write(path: Path, table: Table) -> None:
    rows = {name: {kind: [one.what, one.why] for kind, one in kinds.items()} for name, kinds in sorted(table.items())}
    path.write_text(json.dumps(rows, indent=1) + "\n")


def summary(table: Table) -> str:
    """How many of each outcome, for each kind of use; accepted: of those that there is something to compare with."""
    lines = [
        "| | equal | refused | wrong | raw | accepted | not built | not compared |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(kind for kinds in table.values() for kind in kinds):
        found = [kinds[kind] for kinds in table.values() if kind in kinds]
        counts, tried = Counter(one.what for one in found), sum(one.counts for one in found)
        share = f"{counts['equal'] / tried:.1%}" if tried else ""
        cells = [str(counts[what]) for what in ("equal", "refused", "wrong", "raw")]
        lines.append(" | ".join([f"| {kind}", *cells, share, str(counts["not built"]), f"{counts['not compared']} |"]))
    return "\n".join(lines)


def markdown(table: Table, models: int) -> str:
    """The page; `models` is how many there are."""
    kinds = list(dict.fromkeys(kind for found in table.values() for kind in found))
    lines = [
        _HEAD,
        f"Tried were {len(table)} of {models} models.",
        "",
        summary(table),
        "",
        f"| model | {' | '.join(kinds)} | why |",
        "|---" * (len(kinds) + 2) + "|",
    ]
    for name, found in sorted(table.items()):
        cells = [found[kind].what if kind in found else "" for kind in kinds]
        whys = dict.fromkeys(_short(one.why) for one in found.values() if one.why)
        lines.append(f"| {name} | {' | '.join(cells)} | {'; '.join(whys)} |")
    return "\n".join(lines) + "\n"


def _short(why: str, longest: int = 160) -> str:
    plain = (
        re.sub(r"\S*/(site-packages|tests)/", "", " ".join(why.split()))
        .replace("|", "/")
        .replace("<", "(")
        .replace(">", ")")
    )
    return plain if len(plain) <= longest else plain[: longest - 3] + "..."
