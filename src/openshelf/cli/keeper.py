"""openshelf keeper: this host's keeper in the foreground, as a service manager would run it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from openshelf.cli._arguments import add_json
from openshelf.cli._screen import printable
from openshelf.errors import BadInput
from openshelf.space import Space, host_of, own_number, read_hosts, run_keeper

_EPILOG = """\
Ctrl-C and SIGTERM end it, with 0.

examples:
  openshelf keeper
  openshelf keeper --space etcd://10.0.0.7:2379/demo --contribute 64GiB
  openshelf keeper --hosts /etc/openshelf/hosts.yaml --host 10.0.0.1:7400"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "keeper",
        help="run this host's keeper in the foreground",
        description="Serves the spaces of this host to the other hosts of a hosts file, until SIGTERM or Ctrl-C. "
        "Opening a space by URL starts one on demand; run it yourself to have it from boot on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", metavar="FILE", help="the hosts file (default: OPENSHELF_HOSTS or the user's)")
    parser.add_argument("--host", metavar="HOST:PORT", help="which of the hosts this is, if several could be")
    parser.add_argument("--space", metavar="URL", help="join this space first, and make this host's part of it")
    parser.add_argument("--contribute", metavar="SIZE", help="how much memory this host gives to the space")
    add_json(parser, "print what it keeps as JSON, before it begins")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.space:
        if args.host:
            raise BadInput("--host goes without --space: the URL, or OPENSHELF_HOST, says which host this is")
        Space.open(
            args.space, contribute=args.contribute, hosts=args.hosts
        ).close()  # its keeper hands over to this one
        listed, own = host_of(args.space, args.hosts)
    elif args.contribute:
        raise BadInput("--contribute goes with --space, the URL of the space to join")
    else:
        listed = read_hosts(args.hosts)
        own = own_number(listed, args.host)
    others = [host for number, host in enumerate(listed.hosts) if host and number != own]
    if args.json:
        print(json.dumps({"host": listed.hosts[own], "number": own, "file": str(listed.path), "others": others}))
    else:
        said = f"keeper of {listed.hosts[own]}, host {own} of {listed.path}; others: {', '.join(others) or 'none'}"
        print(f"{printable(said)}\nends on Ctrl-C or SIGTERM")
    sys.stdout.flush()
    run_keeper(listed, own)
