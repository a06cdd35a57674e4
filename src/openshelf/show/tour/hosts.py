"""Chapter two: two hosts, one address. A stores, B's copy dies, and B's next plain load gets the new value."""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from openshelf.errors import NotPermitted
from openshelf.show.times import format_time
from openshelf.show.tour.orders import Line
from openshelf.show.tour.two_hosts import Host, TwoHosts, in_namespaces, on_loopback
from openshelf.show.tour.workers import calm

CYCLES = 50
WIDTH = 24  # of the longest bar
COLOURS = {"home": "green", "modified": "green", "shared": "cyan", "invalid": "red"}


class Scene(NamedTuple):
    what: str
    state_a: str
    wire: str
    state_b: str
    seconds: float | None
    value: float | None  # that a load found
    expected: float | None


@contextlib.contextmanager
def _two_hosts(home: Path) -> Iterator[tuple[TwoHosts, str]]:
    """Namespaces, or loopback and why."""
    with contextlib.ExitStack() as stack:
        try:
            two, why = stack.enter_context(in_namespaces(home)), ""
        except NotPermitted as reason:
            two, why = stack.enter_context(on_loopback(home)), str(reason)
        yield two, why


def _process(host: Host, path: Path) -> Line:
    command = [*host.enter, sys.executable, "-m", "openshelf.show.tour.hosts_process", str(path)]
    with calm():
        return Line(path).run(command, host.environment)


def hosts_chapter(console: Console) -> dict[str, Any]:
    console.rule("[bold]Two hosts, one address")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-tour-") as home,
        _two_hosts(Path(home)) as (two, why),
        _process(two.a, Path(home) / "a.line") as a,
        _process(two.b, Path(home) / "b.line") as b,
        console.status("two hosts share one unit"),
    ):
        a.call("open", two.a.url("tour"))
        b.call("open", two.b.url("tour"))
        a.call("make")
        found_a, found_b = a.call("find"), b.call("find")
        b.call("connect", two.a.ip, a.call("serve", two.a.ip))
        scenes = _story(a, b)
        times, wrong = _cycles(a, b)
        b.call("close")
        a.call("close")

    reason = found_b["reason"]
    where = f"{two.link}{f' ({why})' if why else ''}"
    same = found_a["address"] == found_b["address"]
    console.print(
        f"Host A is {two.a.address}, host B is {two.b.address}: {where}. One unit of 64 KiB at "
        f"{found_b['address']:#x} on both, its home is {found_b['home']}."
    )
    if reason:
        console.print(f"Plain loads are not possible here, so B uses get and put: {reason}")
    console.print(_drawn(scenes))
    console.print(_bars(times))
    right = wrong == 0 and all(scene.value == scene.expected for scene in scenes)
    console.print(
        "Every load found the value stored last, on either host; the programs only load and store."
        if right
        else "[red]A LOAD FOUND AN OLD VALUE."
    )
    return {
        "link": two.link,
        "without_namespaces": why,
        "without_faults": reason,
        "same_address": same,
        "loads_right": right,
        "steps": [scene._asdict() for scene in scenes],
        "median_s": {name: statistics.median(values) for name, values in times.items()},
    }


def _story(a: Line, b: Line) -> list[Scene]:
    """Each step once, with the unit's state on both hosts after it."""
    a.call("store", 1.0)
    scenes = [Scene("A makes it, stores 1", a.call("state"), "", b.call("state"), None, None, None)]
    for who, what, wire, value in (
        ("b", "load", "── 64 KiB ─▶", 1.0),
        ("b", "load", "", 1.0),
        ("a", "store", "── drop it ▶", 2.0),
        ("b", "load", "── 64 KiB ─▶", 2.0),
        ("b", "store", "◀─ drop it ──", 3.0),
        ("a", "load", "◀─ 64 KiB ──", 3.0),
    ):
        line = a if who == "a" else b
        found = None
        if what == "load":
            found, seconds = line.call("load")
            text = f"{who.upper()} loads: {found:g}"
        else:
            seconds = line.call("store", value)
            text = f"{who.upper()} stores {value:g}"
        expected = value if what == "load" else None
        scenes.append(Scene(text, a.call("state"), wire, b.call("state"), seconds, found, expected))
    return scenes


def _cycles(a: Line, b: Line) -> tuple[dict[str, list[float]], int]:
    """A's store, B's load, B's load again, many times, between bare round trips; and how many loads were wrong."""
    times: dict[str, list[float]] = {"bare": [], "miss": [], "hit": [], "store": []}
    wrong = 0
    for cycle in range(CYCLES):
        times["store"].append(a.call("store", float(cycle)))
        for kind in ("miss", "hit"):
            value, seconds = b.call("load")
            times[kind].append(seconds)
            wrong += value != cycle
        times["bare"] += b.call("round_trips", 2)
    return times, wrong


def _drawn(scenes: list[Scene]) -> Table:
    table = Table(title="The unit on both hosts after each step", title_justify="left")
    for column in ("", "A, the home", "wire", "B", "took"):
        table.add_column(column, justify="right" if column == "took" else "left")
    for scene in scenes:
        took = "" if scene.seconds is None else format_time(scene.seconds)
        table.add_row(scene.what, _state(scene.state_a), scene.wire, _state(scene.state_b), took)
    return table


def _state(state: str) -> str:
    colour = COLOURS.get(state, "yellow")
    return f"[{colour}]{'○' if state == 'invalid' else '●'} {state}[/]"


def _bars(times: dict[str, list[float]]) -> Table:
    table = Table(title=f"Measured now, median of {CYCLES}", title_justify="left", show_header=False)
    rows = (
        ("bare TCP: ask, get 64 KiB", "bare"),
        ("B loads after A's store: miss", "miss"),
        ("B loads again: hit", "hit"),
        ("A stores, B's copy dies", "store"),
    )
    medians = {kind: statistics.median(times[kind]) for _, kind in rows}
    longest = max(medians.values())
    for text, kind in rows:
        bar = "█" * round(WIDTH * medians[kind] / longest) or "▏"
        table.add_row(text, format_time(medians[kind]), bar, f"{medians[kind] / medians['bare']:.2g}x")
    return table
