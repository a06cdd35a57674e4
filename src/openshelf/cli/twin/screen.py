"""How `openshelf twin` looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from openshelf.cli._screen import console
from openshelf.show import format_time
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.twin import Collective, Load, Run

_MOST_SHOWN = 20
_MOST_FLAGS = 4


def print_collectives(fabric: str, made: Sequence[Collective]) -> None:
    """A line for each size, then the load of the largest."""
    first = made[0]
    title = f"{first.kind} among {first.ranks} ranks of {fabric} (simulated)"
    table = Table("bytes", "algorithm", "time", "bus GB/s", "found by", title=title, title_justify="left")
    for each in made:
        table.add_row(
            format_size(each.nbytes), _named(each), format_time(each.seconds), f"{each.bus_bytes_per_s / 1e9:.1f}",
            each.how,
        )  # fmt: skip
    screen = console()
    screen.print(table)
    largest = max(made, key=lambda each: each.nbytes)
    _print_load(screen, largest.load, f"load at {format_size(largest.nbytes)}")
    _print_trust(screen, made)


def _named(made: Collective) -> str:
    return f"{made.algorithm}, {made.chunks} chunks" if made.chunks > 1 else made.algorithm


def print_failing(fabric: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each size: with all links, and while some fail."""
    table = Table(
        "bytes", "algorithm", "healthy", "failing", title=f"links of {fabric} fail (simulated)", title_justify="left"
    )
    for row in rows:
        times = format_time(row["healthy_s"]), format_time(row["seconds"])
        table.add_row(format_size(row["bytes"]), str(row["algorithm"]), *times)
    console().print(table)


def print_comparison(made: Mapping[str, Sequence[Collective]]) -> None:
    """Times by size and fabric, and how they compare with the first fabric's."""
    names = list(made)
    first = made[names[0]]
    title = f"{first[0].kind} (simulated); x: as many times faster than {names[0]}"
    table = Table(
        "bytes", *(f"{name}\n{made[name][0].ranks} ranks" for name in names), title=title, title_justify="left"
    )
    for row, base in enumerate(first):
        cells = [
            f"{format_time(made[name][row].seconds)} {base.seconds / made[name][row].seconds:.2f}x\n"
            f"{made[name][row].algorithm}{' ~' if made[name][row].approximate else ''}"
            for name in names
        ]
        table.add_row(format_size(base.nbytes), *cells)
    screen = console()
    screen.print(table)
    every = [each for found in made.values() for each in found]
    if any(each.approximate for each in every):
        screen.print("~ approximate: too large to simulate flow by flow", markup=False, highlight=False)
    _print_trust(screen, every)


def print_run(fabric: str, run: Run) -> None:
    """The time, what of it is exposed communication, and the critical path."""
    screen = console()
    exposed = run.exposed_s()
    text = f"{run.tasks.count} tasks on {fabric}: {format_time(run.seconds)} (simulated), of which " \
           f"{format_time(exposed)} of communication and memory that nothing hides"  # fmt: skip
    screen.print(text, markup=False, highlight=False)
    path = run.critical_path()
    table = Table("task", "kind", "from", "for", title="critical path", title_justify="left")
    for each in path[:_MOST_SHOWN]:
        table.add_row(each.name, each.kind, format_time(each.start_s), format_time(each.finish_s - each.start_s))
    if len(path) > _MOST_SHOWN:
        table.add_row(f"and {len(path) - _MOST_SHOWN} more", "", "", "")
    screen.print(table)


def _print_load(screen: Console, load: Sequence[Load], title: str) -> None:
    table = Table("links and places", "bytes", "mean", "most", title=title, title_justify="left")
    for each in load:
        table.add_row(each.role, format_size(each.nbytes), f"{each.mean:.1%}", f"{each.most:.1%}")
    screen.print(table)


def _print_trust(screen: Console, made: Sequence[Collective]) -> None:
    sources = sorted({each.source for each in made if each.source})
    if sources:
        screen.print(f"figures are {' or '.join(sources)} at worst", markup=False, highlight=False)
    beyond = list(dict.fromkeys(text for each in made for text in each.beyond))
    for text in beyond[:_MOST_FLAGS]:
        screen.print(f"extrapolated: {text}", markup=False, highlight=False)
    if len(beyond) > _MOST_FLAGS:
        screen.print(f"and {len(beyond) - _MOST_FLAGS} more sizes are extrapolated (--json lists them)", markup=False)
