"""Requests: what arrives, when, how long, and which blocks of its prompt others have, too.

From traces (Mooncake's JSON lines with `hash_ids`, any JSON lines or CSV with a time and two lengths), or drawn by a
law of arrivals. A trace with holes (lines that say nothing of a time or a length, times that go back) is read as far
as it goes, and says so.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openshelf._texts import json_of, opened_text
from openshelf.errors import BadInput

Floats = NDArray[np.float64]
Whole = NDArray[np.uint32]
_TIMES = ("timestamp", "arrival_time", "arrives_s", "t", "TIMESTAMP", "Timestamp")
_INPUTS = ("input_length", "input_toks", "input_tokens", "ContextTokens", "prompt_tokens", "Request tokens")
_OUTPUTS = (
    "output_length", "output_toks", "output_tokens", "GeneratedTokens", "completion_tokens", "Response tokens"
)  # fmt: skip
_CLIENTS = {"client", "t_s", "requests_per_s", "cv"}
"""Columns of ServeGen's clients: how often each asks, and how unevenly, from a time on."""
_BLOCK_TOKENS = 512
_LONGEST = 1 << 30


@dataclass(frozen=True)
class Requests:
    """Columns, in order of arrival. `ids`: of each prompt's whole blocks of `block_tokens`, from `ids_at[i]` on."""

    arrives_s: Floats
    input_tokens: Whole
    output_tokens: Whole
    ids_at: NDArray[np.uint64]
    ids: Whole
    block_tokens: int = _BLOCK_TOKENS
    holes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrives_s)

    @property
    def span_s(self) -> float:
        return float(self.arrives_s[-1] - self.arrives_s[0]) if len(self) else 0.0

    def repeated(self, times: int) -> Requests:
        """So many copies one after the other; the blocks of one copy are not those of another."""
        if times == 1:
            return self
        gap = self.span_s + (self.span_s / max(1, len(self) - 1))
        each = np.uint32(int(self.ids.max()) + 1 if len(self.ids) else 0)
        count = int(self.ids_at[-1])
        return replace(
            self,
            arrives_s=np.concatenate([self.arrives_s + gap * at for at in range(times)]),
            input_tokens=np.tile(self.input_tokens, times),
            output_tokens=np.tile(self.output_tokens, times),
            ids_at=np.concatenate(
                [*(self.ids_at[:-1] + np.uint64(count * at) for at in range(times)), [np.uint64(count * times)]]
            ),
            ids=np.concatenate([self.ids + each * np.uint32(at) for at in range(times)]),
        )

    def faster(self, factor: float) -> Requests:
        """The same, arriving so many times as fast."""
        if not 0 < factor < math.inf:
            raise BadInput(f"arrivals cannot be {factor:g} times as fast: give a number above 0")
        return replace(self, arrives_s=self.arrives_s / factor)

    def first(self, count: int) -> Requests:
        end = int(self.ids_at[min(count, len(self))])
        return replace(
            self,
            arrives_s=self.arrives_s[:count],
            input_tokens=self.input_tokens[:count],
            output_tokens=self.output_tokens[:count],
            ids_at=self.ids_at[: count + 1],
            ids=self.ids[:end],
        )


def made_of(arrives_s: Iterable[float], input_tokens: Iterable[float], output_tokens: Iterable[float]) -> Requests:
    """Requests that have no block in common."""
    times = np.asarray(list(arrives_s), dtype=np.float64)
    lengths = [
        np.asarray(list(each), dtype=np.float64).round().astype(np.uint32) for each in (input_tokens, output_tokens)
    ]
    return Requests(times, lengths[0], lengths[1], np.zeros(len(times) + 1, np.uint64), np.zeros(0, np.uint32))


def drawn(
    count: int,
    rate: float,
    input_tokens: tuple[float, float],
    output_tokens: tuple[float, float],
    *,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Requests:
    """Gamma arrivals (burstiness 1: Poisson; 0: evenly spaced; the variation of gaps otherwise), lengths evenly from
    ranges; rate 0: all at once."""
    random = np.random.default_rng(seed)
    if not (0 <= rate < math.inf and 0 <= burstiness < math.inf) or count < 1:
        raise BadInput(
            f"{count} requests at {rate:g} a second with burstiness {burstiness:g}: give 1 or more, and nothing below 0"
        )
    if rate == 0:
        gaps = np.zeros(count)
    elif burstiness == 0:
        gaps = np.full(count, 1 / rate)
    else:
        gaps = random.gamma(1 / burstiness**2, burstiness**2 / rate, count)
    lengths = [random.uniform(*each, count) for each in (input_tokens, output_tokens)]
    return made_of(np.cumsum(gaps) - gaps[0], *lengths)


def read_requests(path: Path) -> Requests:
    """A trace: .csv, or JSON lines. Times in Mooncake's `timestamp` are milliseconds, others seconds or dates."""
    if not path.is_file():
        raise BadInput(f"there is no trace {path}")
    with opened_text(path) as file:
        if path.suffix == ".csv":
            rows_of_file: list[tuple[int, Mapping[str, Any]]] = list(enumerate(csv.DictReader(file), 2))
            if rows_of_file and rows_of_file[0][1].keys() >= _CLIENTS:
                raise BadInput(
                    f"{path} says how often clients ask, not what: give the lengths of their requests, too (--lengths)"
                )
            return _made(rows_of_file, path)
        lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    rows: list[tuple[int, Mapping[str, Any]]] = []
    for number, line in lines:
        try:
            row = json_of(line, str(path))
        except BadInput:  # left out, and counted
            row = {}
        rows.append((number, row if isinstance(row, dict) else {}))
    return _made(rows, path)


def is_clients(path: Path) -> bool:
    """Whether a file has ServeGen's columns of clients."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    with opened_text(path) as file:
        return set(next(csv.reader(file), [])) >= _CLIENTS


def drawn_of_clients(
    path: Path, input_tokens: tuple[float, float], output_tokens: tuple[float, float], *, seed: int = 0
) -> Requests:
    """Arrivals by ServeGen's table: each client's from `t_s` on until the next window, gaps by a gamma law of its `cv`;
    lengths evenly from ranges."""
    random = np.random.default_rng(seed)
    with opened_text(path) as file:
        rows = list(csv.DictReader(file))
    try:
        found = [(row["client"], float(row["t_s"]), float(row["requests_per_s"]), float(row["cv"])) for row in rows]
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} has something else than numbers in {', '.join(sorted(_CLIENTS))}: {error}") from None
    if not all(math.isfinite(value) and value >= 0 for row in found for value in row[1:]):
        raise BadInput(f"{path} has a time, rate or cv below 0, or none: expected numbers from 0 on")
    starts = sorted({row[1] for row in found})
    window = min((later - earlier for earlier, later in pairwise(starts)), default=600.0)
    times: list[float] = []
    for _, start, rate, variation in found:
        variation = max(variation, 1e-3)
        at = start - random.random() / rate if rate else math.inf
        while (at := at + random.gamma(1 / variation**2, variation**2 / rate if rate else 0.0)) < start + window:
            if at >= start:
                times.append(at)
    if not times:
        raise BadInput(f"no client of {path} asks anything")
    times.sort()
    lengths = [random.uniform(*each, len(times)) for each in (input_tokens, output_tokens)]
    return made_of(np.array(times) - times[0], *lengths)


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _seconds(value: Any, milliseconds: bool) -> float:
    try:
        return float(value) / (1e3 if milliseconds else 1.0)
    except ValueError:
        date = datetime.fromisoformat(str(value)[:26])
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _made(rows: list[tuple[int, Mapping[str, Any]]], path: Path) -> Requests:
    good, bad = [], []
    for number, row in rows:
        time, lengths = _first(row, _TIMES), (_first(row, _INPUTS), _first(row, _OUTPUTS))
        try:
            at = _seconds(time, "hash_ids" in row)
            found = (at, int(lengths[0]), int(lengths[1]), [int(each) for each in row.get("hash_ids") or ()])
        except (TypeError, ValueError, OverflowError):
            bad.append(number)
            continue
        if not math.isfinite(at) or not 1 <= found[1] <= _LONGEST or not 0 <= found[2] <= _LONGEST:
            bad.append(number)
            continue
        good.append(found)
    if not good:
        raise BadInput(f"{path} has no request with a time ({', '.join(_TIMES)}), an input and an output length")
    holes = []
    if bad:
        some = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        holes.append(f"{len(bad)} of {len(rows)} lines have no time or no lengths and are left out: {some}")
    if any(later[0] < earlier[0] for earlier, later in pairwise(good)):
        holes.append("times go back: requests are taken in order of time")
        good.sort(key=lambda each: each[0])
    start = good[0][0]
    gaps = np.diff([each[0] for each in good])
    if len(gaps) > 20 and gaps.max() > 60 and gaps.max() > 100 * max(gaps.mean(), 1e-9):
        after = good[int(gaps.argmax())][0] - start
        holes.append(f"nothing arrives for {gaps.max():.0f} s after {after:.0f} s: is a part of the trace missing?")
    numbers: dict[int, int] = {}
    ids = [numbers.setdefault(each, len(numbers)) for row in good for each in row[3]]
    counts = np.cumsum([0, *(len(row[3]) for row in good)])
    return Requests(
        np.array([row[0] - start for row in good]),
        np.array([row[1] for row in good], np.uint32),
        np.array([max(1, row[2]) for row in good], np.uint32),
        counts.astype(np.uint64),
        np.array(ids, np.uint32),
        holes=tuple(holes),
    )
