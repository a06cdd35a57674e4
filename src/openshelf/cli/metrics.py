"""openshelf metrics: all figures of this host, printed once or served to Prometheus."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from openshelf.cli._arguments import add_hosts, add_json

_WHERE = "127.0.0.1:9100"
_EPILOG = """\
Spaces, flash tiers, KV pools, tables and hosts of this user, as Prometheus reads them. Nothing is made, started or
joined for this. What cannot be looked at is left out; a comment says why. Ctrl-C ends --listen, with 0.

examples:
  openshelf metrics
  openshelf metrics --listen                   at http://127.0.0.1:9100/metrics and /health
  openshelf metrics --listen 127.0.0.1:9400"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "metrics",
        help="figures of all spaces for Prometheus",
        description="Prints the figures of all spaces of this user, or serves them over HTTP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen",
        nargs="?",
        const=_WHERE,
        metavar="HOST:PORT",
        help=f"serve them there (default {_WHERE}; port 0: any)",
    )
    parser.add_argument("--anybody", action="store_true", help="with --listen: at an address that other machines reach")
    add_hosts(parser, "the hosts file of spaces over hosts (default: OPENSHELF_HOSTS or the user's)")
    add_json(parser, "print JSON; with --listen: where it listens")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from openshelf.show import figures, figures_text, troubles

    if args.listen is None:
        found = figures(args.hosts)
        print(json.dumps(found) if args.json else figures_text(found), end="\n" if args.json else "")
        return 0
    from openshelf.cli._serve import parse_address, serve  # here: it is large, and read for every command

    host, port = parse_address(args.listen, args.anybody)

    def began(url: str) -> None:
        print(json.dumps({"url": url}) if args.json else f"serving {url}; ends on Ctrl-C", flush=True)

    def health() -> tuple[bool, str]:
        found = troubles(figures(args.hosts))
        return not found, "".join(f"{line}\n" for line in found or ["ok"])

    pages = {"/metrics": lambda: (True, figures_text(figures(args.hosts))), "/health": health}
    with contextlib.suppress(KeyboardInterrupt):
        serve(host, port, pages, args.anybody, began)
    return 0
