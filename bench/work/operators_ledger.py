"""The ledger of the operators' laws: which measured rows made each law of the package, and how far off it is.

`python bench/work/operators_ledger.py` writes operators_ledger.txt: for each law its kind, accelerator and words, how
many rows made it, the digest of their hashes, and the median error in percent on those rows and on shapes that were
left out. The constants are in laws.yaml of openshelf.twin.ops. tests/bench/test_ledger.py checks that both agree with
the data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from openshelf.twin.ops import Law, OpTable, accelerator, error, laws_of, name_of, read_tables

LEDGER = Path(__file__).with_name("operators_ledger.txt")
FILES = ("gemm.csv", "attention_context.csv", "attention_generation.csv", "mla.csv", "moe.csv")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@dataclass(frozen=True)
class Entry:
    kind: str
    device: str
    words: str
    rows: int
    digest: str
    residual: float
    left_out: float

    def line(self) -> str:
        return (
            f"{self.kind} {self.device} {self.words} {self.rows} {self.digest} {self.residual:.2f} {self.left_out:.1f}"
        )


def entries() -> list[Entry]:
    """What the ledger says."""
    made = []
    for line in LEDGER.read_text().splitlines():
        kind, device, words, rows, digest, residual, left_out = line.split()
        made.append(Entry(kind, device, words, int(rows), digest, float(residual), float(left_out)))
    return made


def entries_of(tables: Iterable[OpTable]) -> Iterator[Entry]:
    """What the package's laws and these tables say."""
    for table in tables:
        hashes, keys = np.array(table.hashes()), table.keys()
        for key in sorted(set(keys)):
            rows = np.array([row for row, each in enumerate(keys) if each == key])
            words = dict(zip(table.kind.words, key[1:], strict=True))
            law: Law = laws_of()[table.kind.name][key[0]][name_of(words)]
            sizes = {name: column[rows] for name, column in table.sizes.items()}
            said = law.seconds(table.kind, sizes, accelerator(key[0]), words)
            digest = blake2b("".join(sorted(hashes[rows])).encode(), digest_size=8).hexdigest()
            off = round(100 * error(said, table.seconds[rows]), 2)
            yield Entry(table.kind.name, key[0], name_of(words), len(rows), digest, off, round(100 * law.error, 1))


def tables_of(data: Path, files: tuple[str, ...] = FILES) -> Iterator[OpTable]:
    for name in files:
        yield from read_tables(data / "ops" / name)


def main() -> None:
    from kit.data import DATA

    LEDGER.write_text("".join(each.line() + "\n" for each in entries_of(tables_of(DATA))))


if __name__ == "__main__":
    main()
