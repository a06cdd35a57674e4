"""openshelf top: spaces with a flash tier, live."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Group
from rich.live import Live
from rich.text import Text

from openshelf.cli._arguments import add_json, add_space
from openshelf.cli._screen import console
from openshelf.errors import BadInput
from openshelf.show import keeper_runs, rates, tier_metrics, tier_view
from openshelf.space import tiers_of

_EPILOG = """\
examples:
  openshelf top                        all spaces of this user, until Ctrl-C
  openshelf top demo --interval 0.2
  openshelf top demo --once --json | jq '.spaces[0].rates.read_bytes_per_s'
  openshelf top --prometheus           counts as Prometheus reads them

Touches are those that came to the keeper: of bytes that are on flash, were never written, or that it watches. Loads
and stores of what is mapped already cost nothing, and nobody counts them. Memory of devices belongs to processes and
is not shown. Spaces are not opened for this, nor their keepers asked. Ctrl-C ends it, with 0."""
_NONE = "no spaces with a flash tier; openshelf.Space.create(name, dram=, flash='/path/file:64GiB') makes one"


class _Look(NamedTuple):
    at: float
    spaces: dict[str, dict[str, Any]]


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="watch the tiers of spaces",
        description="Shows where the bytes of spaces with a flash tier are, what moves, and who waits for it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_space(parser, "space", "its name, or the path of its directory (default: all of this user)", "?")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)")
    parser.add_argument("--once", action="store_true", help="show one interval and end")
    add_json(parser, "print one JSON object for each interval")
    parser.add_argument("--prometheus", action="store_true", help="print the counts once, as Prometheus reads them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0.01 <= args.interval <= 86_400:
        raise BadInput(f"--interval {args.interval}: expected 0.01 to 86400 seconds")
    first = _Look(time.monotonic(), tiers_of(args.space))
    if args.prometheus:
        print(tier_metrics(first.spaces), end="")
        return 0
    if not first.spaces and not args.json:
        print(_NONE)
        return 0
    try:
        _json(args, first) if args.json else _show(args, first)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # `| head` has seen enough; nothing more may be written at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _looks(args: argparse.Namespace, first: _Look) -> Iterator[tuple[_Look, _Look]]:
    """Each look with the one before it."""
    before = first
    while True:
        time.sleep(max(0.0, before.at + args.interval - time.monotonic()))
        after = _Look(time.monotonic(), tiers_of(args.space))
        yield before, after
        if args.once:
            return
        before = after


def _now(name: str, before: _Look, after: _Look) -> dict[str, float | None] | None:
    """What happened in a space between two looks; None if one of them did not see it."""
    old, new = before.spaces.get(name), after.spaces[name]
    if old is None or "error" in old or "error" in new:
        return None
    return rates(old, new, after.at - before.at)


def _json(args: argparse.Namespace, first: _Look) -> None:
    for before, after in _looks(args, first):
        spaces = [
            {"name": name, "tiers": facts, "rates": _now(name, before, after)}
            | ({} if "error" in facts else {"keeper_runs": keeper_runs(facts)})
            for name, facts in after.spaces.items()
        ]
        print(json.dumps({"time": time.time(), "interval_s": after.at - before.at, "spaces": spaces}), flush=True)


def _show(args: argparse.Namespace, first: _Look) -> None:
    screen = console()
    if args.once or not screen.is_terminal:
        for before, after in _looks(args, first):
            screen.print(_drawn(before, after))
        return
    with Live(_drawn(None, first), console=screen, auto_refresh=False, screen=False) as live:
        for before, after in _looks(args, first):
            live.update(_drawn(before, after), refresh=True)


def _drawn(before: _Look | None, after: _Look) -> Group:
    parts: list[Any] = []
    for name, facts in after.spaces.items():
        parts += [tier_view(name, facts, _now(name, before, after) if before else None), Text()]
    return Group(*(parts or [Text(_NONE)]))
