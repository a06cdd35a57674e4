"""openshelf keeper: this host's keeper in the foreground, as a service manager would run it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from openshelf.cli._arguments import add_json
from openshelf.cli._screen import printable
from openshelf.errors import BadInput
from openshelf.space import Hosts, Space, host_of, make_part, own_number, read_hosts, run_keeper

_EPILOG = """\
Ctrl-C and SIGTERM end it, with 0.

examples:
  openshelf keeper
  openshelf keeper --space demo --contribute 64GiB
  openshelf keeper --space etcd://10.0.0.7:2379/demo --contribute 64GiB
  openshelf keeper --hosts /etc/openshelf/hosts.yaml --host 10.0.0.1:7400
  openshelf keeper --space demo --contribute 64GiB --unit > /etc/systemd/system/openshelf-keeper.service"""

# A service manager that stops or upgrades it lets touches wait until the next one is there: RestartSec is short.
_UNIT = """\
[Unit]
Description=Openshelf keeper of {host}
Documentation=man:systemd.service(5)
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={command}
{environment}{user}Restart=always
RestartSec=100ms
TimeoutStopSec=20s
KillMode=mixed
LimitNOFILE=65536
NoNewPrivileges=yes
ProtectSystem=full

[Install]
WantedBy={wanted}
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "keeper",
        help="run this host's keeper in the foreground",
        description="Serves the spaces of this host to the other hosts of a hosts file, until SIGTERM or Ctrl-C. "
        "Opening a space by URL starts one on demand, which ends for this one; as a service it is there from boot on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", metavar="FILE", help="the hosts file (default: OPENSHELF_HOSTS or the user's)")
    parser.add_argument("--host", metavar="HOST:PORT", help="which of the hosts this is, if several could be")
    parser.add_argument(
        "--space",
        metavar="NAME",
        help="make this host's part of a space first, if it is not there; etcd://...: join it",
    )
    parser.add_argument("--contribute", metavar="SIZE", help="how much memory this host gives to that space")
    parser.add_argument("--unit", action="store_true", help="print a systemd unit that runs this command, and end")
    add_json(parser, "print what it keeps as JSON, before it begins")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.space and args.space.startswith("etcd://"):
        _join(args)
    listed = read_hosts(args.hosts)
    own = own_number(listed, args.host)
    if args.contribute and not args.space:
        raise BadInput("--contribute goes with --space, the name of the space")
    if args.unit:
        print(unit(args, listed, own), end="")
    else:
        _become(args, listed, own)
    return 0


def _join(args: argparse.Namespace) -> NoReturn:
    """Of a space whose hosts agree in etcd."""
    if args.host or args.unit:
        raise BadInput("--host and --unit go without etcd://; there OPENSHELF_HOST says which host this is")
    Space.open(args.space, contribute=args.contribute, hosts=args.hosts).close()  # its keeper hands over to this one
    _tell(args, *host_of(args.space, args.hosts))


def _become(args: argparse.Namespace, listed: Hosts, own: int) -> NoReturn:
    if args.space:
        make_part(args.space, args.contribute, listed, own)
    _tell(args, listed, own)


def _tell(args: argparse.Namespace, listed: Hosts, own: int) -> NoReturn:
    """Says what it keeps, and keeps it."""
    others = [host for number, host in enumerate(listed.hosts) if host and number != own]
    if args.json:
        print(json.dumps({"host": listed.hosts[own], "number": own, "file": str(listed.path), "others": others}))
    else:
        said = f"keeper of {listed.hosts[own]}, host {own} of {listed.path}; others: {', '.join(others) or 'none'}"
        print(f"{printable(said)}\nends on Ctrl-C or SIGTERM")
    sys.stdout.flush()
    run_keeper(listed, own)


def unit(args: argparse.Namespace, listed: Hosts, own: int) -> str:
    """A systemd unit of this user: of the system for root, else of the user's own manager."""
    if listed.own is not None:
        raise BadInput(f"{listed.path} says `hosts: job`: a job ends, a service stays; list the hosts for a service")
    script = Path(sys.executable).with_name("openshelf")
    words = [str(script)] if script.exists() else [sys.executable, "-c", "from openshelf.cli import main; main()"]
    words += ["keeper", "--hosts", str(listed.path.absolute()), "--host", listed.hosts[own]]
    for option, value in (("--space", args.space), ("--contribute", args.contribute)):
        words += [option, value] if value else []
    place = os.environ.get("OPENSHELF_DIR")
    environment = f"Environment={_quoted(f'OPENSHELF_DIR={Path(place).absolute()}')}\n" if place else ""
    root = os.geteuid() == 0
    return _UNIT.format(
        host=listed.hosts[own],
        command=" ".join(_quoted(word) for word in words),
        environment=environment,
        user="User=root\n" if root else "",
        wanted="multi-user.target" if root else "default.target",
    )


def _quoted(word: str) -> str:
    """As systemd.syntax(7) reads it: specifiers and variables are escaped, and what is not plain is in quotes."""
    if any(ord(character) < 32 for character in word):
        raise BadInput(f"{word!r} cannot be written in a unit file")
    word = word.replace("%", "%%").replace("$", "$$")
    if word.isascii() and all(character.isalnum() or character in "-_./:@=%$[]+," for character in word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
