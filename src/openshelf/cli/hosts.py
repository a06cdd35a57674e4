"""openshelf hosts: make a hosts file, or show the hosts of a space and the links to them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
from rich.table import Column, Table

from openshelf.cli._arguments import add_json, add_space
from openshelf.cli._screen import cell, console, printable
from openshelf.errors import BadInput, OpenshelfError
from openshelf.space import Cluster, Space, format_size, hosts_of, look, new_hosts_file

_STATES = {"up": "up", "unopened": "has not opened this space", "down": "[red]down"}
_EPILOG = """\
A host is "down" if nothing answers there. One that answers, but where nobody has opened the space, is said to be so.
The space is not joined for this, and no keeper is started: misses and recalls are shown if one runs on this host.
--measure needs this host's part of the space, and memory on each host for a short while.

examples:
  openshelf hosts new ~/.config/openshelf/hosts.yaml 10.0.0.1:7400 10.0.0.2:7400
  openshelf hosts openshelf://10.0.0.1:7400/demo --measure"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "hosts",
        help="make a hosts file, show a space's hosts, or make lost copies again",
        description="With a URL: the hosts of a space, their room and the links to them. With `new`: writes a hosts "
        "file with a new key, to be copied to every host. With `mend`: makes copies again that a space with replicas "
        "lost, as its keepers do by themselves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_space(parser, "url", "openshelf://HOST:PORT/NAME, `new`, or `mend`")
    parser.add_argument(
        "rest", nargs="*", metavar="PATH", help="after `new`: the file, the hosts; after `mend`: the URL"
    )
    parser.add_argument("--hosts", metavar="FILE", help="the hosts file (default: OPENSHELF_HOSTS or the user's)")
    parser.add_argument("--measure", action="store_true", help="measure the bandwidth from each host by a short get")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.url == "new":
        return _new(args)
    if args.url == "mend":
        return _mend(args)
    if args.rest:
        raise BadInput(f"{' '.join(args.rest)!r} is too much; expected one URL, or `new PATH HOST:PORT...`")
    found = _measured(args) if args.measure else hosts_of(args.url, hosts=args.hosts)
    if args.json:
        print(json.dumps(found))
    else:
        _show(found)
    return 0


def _measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    look(args.url, hosts=args.hosts).close()  # raises if this host has no part: none is made
    with Space.open(args.url, hosts=args.hosts) as space:
        found = space.hosts()
        for one in found:
            if one["up"] and not one["own"]:
                one["bandwidth"] = _bandwidth(space, one["number"])
    return found


def _new(args: argparse.Namespace) -> int:
    if not args.rest:
        raise BadInput("expected `openshelf hosts new PATH [HOST:PORT...]`")
    made = new_hosts_file(args.rest[0], args.rest[1:])
    if args.json:
        print(json.dumps({"path": str(made.path), "hosts": list(made.hosts)}))
    else:
        count = f"{len(made.hosts) or 'no'} host{'s' * (len(made.hosts) != 1)}"
        said = f"{made.path}: a new key and {count}. Copy it to every host (scp -p), and keep it secret:"
        print(printable(said))
        print("who has the key can read and write every space.")
    return 0


def _mend(args: argparse.Namespace) -> int:
    if len(args.rest) != 1:
        raise BadInput("expected `openshelf hosts mend URL`")
    (url,) = args.rest
    look(url, hosts=args.hosts).close()  # raises if this host has no part: none is made
    with Space.open(url, hosts=args.hosts) as space:
        native = space._native
        if not isinstance(native, Cluster):
            raise BadInput(f"{url} is a space on one host, which has no copies")
        whole = native.mend()
    if args.json:
        print(json.dumps({"whole": whole}))
    elif whole:
        print("everything that is first on this host has its copies")
    else:
        print("some arrays have fewer copies than they should: too few hosts are there with room", file=sys.stderr)
    return 0 if whole else 1


def _bandwidth(space: Space, number: int) -> float | None:
    """Bytes per second of gets into reused memory, for a third of a second; None if the host has no room for it."""
    try:
        there = space.new(None, 16 << 20, "uint8", home=number)
        out = np.empty(16 << 20, np.uint8)
        space.get(there, out).wait()  # memory is touched for the first time, connections are made
        start, moved = time.perf_counter(), 0
        while (spent := time.perf_counter() - start) < 0.3:
            space.get(there, out).wait()
            moved += out.nbytes
    except OpenshelfError:
        return None
    return moved / spent


def _show(found: list[dict[str, Any]]) -> None:
    names = ("room", "free", "round trip", "speed", "misses", "recalls")
    table = Table("", Column("host", no_wrap=True), "", *names)
    for one in found:
        state = _STATES[one["state"]]
        if one["own"]:
            state = "this host" if one["up"] else f"this host, {state}"
        table.add_row(
            str(one["number"]),
            cell(one["host"]),
            state,
            _or_blank(one["bytes"], format_size),
            _or_blank(one["free"], format_size),
            "" if one["own"] or not one["up"] else _or_blank(one["round_trip_us"], lambda us: f"{us:.0f} us"),
            _or_blank(one["bandwidth"], lambda rate: f"{rate / 1e9:.2f} GB/s"),
            _or_blank(one["misses"], str),
            _or_blank(one["recalls"], str),
        )
    console().print(table)


def _or_blank(value: Any, shown: Any) -> str:
    return "" if value is None else str(shown(value))
