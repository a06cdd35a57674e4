"""Measured collectives: tables that nccl-tests prints, and JSON of `machine/collective/per_node` series.

    #                                                              out-of-place                       in-place
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         1048576        262144     float     sum      -1    41.20   25.45   25.45      0    40.90   25.64   25.64      0

The out-of-place time is taken, counted from the right: some collectives leave the `redop` column empty.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from openshelf.errors import BadInput

_NAMES = {"sendrecv": "send_recv", "all_reduce": "all_reduce"}
_PERF = re.compile(r"\b(sendrecv|all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce)_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+\d+.*\bon\s+(\S+)\s+device", re.MULTILINE)
_KEY = re.compile(r"(?P<machine>.+)/(?P<what>send_recv|ranks\d+)/per_node(?P<per_node>\d+)")


@dataclass(frozen=True)
class Series:
    """One collective on some ranks, `per_node` of them on each node: (bytes, seconds) in rising order of bytes."""

    machine: str
    collective: str
    ranks: int
    per_node: int
    points: tuple[tuple[int, float], ...]

    @property
    def name(self) -> str:
        what = "send_recv" if self.collective == "send_recv" else f"{self.collective} of {self.ranks}"
        return f"{self.machine} {what}, {self.per_node} a node"

    @property
    def where(self) -> str:
        """`within` a node, or `between` nodes."""
        return "within" if self.ranks <= self.per_node else "between"

    @property
    def falls(self) -> tuple[int, ...]:
        """Sizes that took less time than a smaller one did: a sign of noise, or of another regime."""
        longest, found = 0.0, []
        for nbytes, seconds in self.points:
            if seconds < longest:
                found.append(nbytes)
            longest = max(longest, seconds)
        return tuple(found)


def read_measured(path: str | Path, collective: str | None = None, machine: str = "machine") -> list[Series]:
    """The series of a file: nccl-tests' output of a `machine` as text, or JSON; raises BadInput if it is neither."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"cannot read measurements from {str(file)!r}: {error.strerror}") from error
    return (
        _from_json(text, str(file)) if text.lstrip().startswith("{") else [_from_text(text, file, collective, machine)]
    )


def _from_json(text: str, file: str) -> list[Series]:
    try:
        data = json.loads(text)["data"]
        items = [(str(key), [(int(n), float(us) * 1e-6) for n, us in rows]) for key, rows in data.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{file}: expected JSON with a key 'data' of series [[bytes, microseconds], ...]; {error!r}"
        ) from None
    return [_keyed(key, points, file) for key, points in items]


def _keyed(key: str, points: list[tuple[int, float]], file: str) -> Series:
    match = _KEY.fullmatch(key)
    if not match:
        raise BadInput(f"{file}: expected keys as machine/send_recv/per_node2, machine/ranks4/per_node4; {key!r} came")
    send = match["what"] == "send_recv"
    ranks = 2 if send else int(match["what"].removeprefix("ranks"))
    what = "send_recv" if send else "all_reduce"
    return _checked(Series(match["machine"], what, ranks, int(match["per_node"]), tuple(sorted(points))), file)


def _from_text(text: str, file: Path, collective: str | None, machine: str) -> Series:
    found = _PERF.search(text) or _PERF.search(file.name)
    named = collective or (found[1] if found else None)
    if named is None or _NAMES.get(named, named) not in _NAMES.values():
        raise BadInput(
            f"{file}: {named or 'no collective'} came; expected the output of all_reduce_perf or sendrecv_perf. Where "
            "the text does not name it, pass --collective all_reduce or send_recv"
        )
    hosts = Counter(_RANK.findall(text))
    if sum(hosts.values()) < 2:
        raise BadInput(f"{file}: expected a line '#  Rank  0 ... on HOST device ...' for each of two or more ranks")
    lines = text.splitlines()
    header = next((line.lstrip("# ").split() for line in lines if re.match(r"#\s+size\s.*time", line)), None)
    if header is None:
        raise BadInput(f"{file}: no header with the columns size and time; is this the output of nccl-tests?")
    at = header.index("time") - len(header)
    points = []
    for line in lines:
        cells = line.split()
        if cells and cells[0].isdigit():
            try:
                points.append((int(cells[0]), float(cells[at]) * 1e-6))
            except (IndexError, ValueError):
                raise BadInput(f"{file}: no time in column {at} from the right of {line.strip()!r}") from None
    ranks, per_node = sum(hosts.values()), max(hosts.values())
    return _checked(Series(machine, _NAMES.get(named, named), ranks, per_node, tuple(sorted(points))), str(file))


def _checked(series: Series, file: str) -> Series:
    if not series.points:
        raise BadInput(f"{file}: no rows of measurements in {series.name}")
    for nbytes, seconds in series.points:
        if nbytes < 1 or not 0 < seconds < float("inf"):
            raise BadInput(f"{file}: {series.name}: {nbytes} bytes in {seconds} s; expected numbers above 0")
    return series
