"""Measured collectives: tables that nccl-tests prints, JSON of `machine/collective/per_node` series, CSV tables.

    #                                                              out-of-place                       in-place
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         1048576        262144     float     sum      -1    41.20   25.45   25.45      0    40.90   25.64   25.64      0

The out-of-place time is taken, counted from the right: some collectives leave the `redop` column empty. Sizes are as
nccl-tests count them: of all-gather and reduce-scatter the whole. CSV tables are told apart by their columns
(csv_tables.py).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from openshelf._texts import json_of
from openshelf.errors import BadInput
from openshelf.fabric.calibration.csv_tables import is_table, series_of
from openshelf.fabric.calibration.series import COLLECTIVES, NAMES, Series

_PERF = re.compile(r"\b(sendrecv|all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|gather|scatter)_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+\d+.*\bon\s+(\S+)\s+device", re.MULTILINE)
_KEY = re.compile(r"(?P<machine>.+)/(?P<what>send_recv|ranks\d+)/per_node(?P<per_node>\d+)")


def read_measured(path: str | Path, collective: str | None = None, machine: str = "machine") -> list[Series]:
    """The series of a file: nccl-tests' output of a `machine` as text, JSON or CSV; raises BadInput if it is none."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(f"cannot read measurements from {str(file)!r}: {error.strerror}") from error
    if text.lstrip().startswith("{"):
        return _from_json(text, str(file))
    if is_table(text):
        return [checked(each, str(file)) for each in series_of(text, str(file))]
    return [_from_text(text, file, collective, machine)]


def _from_json(text: str, file: str) -> list[Series]:
    try:
        data = json_of(text, file)["data"]
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
    return checked(Series(match["machine"], what, ranks, int(match["per_node"]), tuple(sorted(points))), file)


def _from_text(text: str, file: Path, collective: str | None, machine: str) -> Series:
    found = _PERF.search(text) or _PERF.search(file.name)
    named = collective or (found[1] if found else None)
    if named is None or NAMES.get(named, named) not in COLLECTIVES:
        raise BadInput(
            f"{file}: {named or 'no collective'} came; expected the output of nccl-tests for {', '.join(COLLECTIVES)}. "
            "Where the text does not name it, pass --collective"
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
    return checked(Series(machine, NAMES.get(named, named), ranks, per_node, tuple(sorted(points))), str(file))


def checked(series: Series, file: str) -> Series:
    """The series, if it has rows and they are numbers above 0."""
    if not series.points:
        raise BadInput(f"{file}: no rows of measurements in {series.name}")
    if series.ranks < 2 or series.per_node < 1:
        raise BadInput(f"{file}: {series.name}: expected 2 ranks or more, and 1 or more on a node")
    for nbytes, seconds in series.points:
        if nbytes < 1 or not 0 < seconds < float("inf"):
            raise BadInput(f"{file}: {series.name}: {nbytes} bytes in {seconds} s; expected numbers above 0")
    return series
