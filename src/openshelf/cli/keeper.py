"""openshelf keeper: this host's keeper in the foreground, as a service manager would run it."""

from __future__ import annotations

import argparse
from typing import Any

from openshelf.space import own_number, read_hosts, run_keeper


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "keeper",
        help="run this host's keeper in the foreground",
        description="Serves the spaces of this host to the other hosts of a hosts file, until SIGTERM or Ctrl-C. "
        "Opening a space by URL starts one on demand; run it yourself to have it from boot on.",
    )
    parser.add_argument("--hosts", metavar="FILE", help="the hosts file (default: OPENSHELF_HOSTS or the user's)")
    parser.add_argument("--host", metavar="HOST:PORT", help="which of the hosts this is, if several could be")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    listed = read_hosts(args.hosts)
    own = own_number(listed, args.host)
    others = [host for number, host in enumerate(listed.hosts) if number != own]
    print(f"keeper of {listed.hosts[own]}, host {own} of {listed.path}; others: {', '.join(others) or 'none'}")
    print("ends on Ctrl-C or SIGTERM", flush=True)
    run_keeper(listed, own)
