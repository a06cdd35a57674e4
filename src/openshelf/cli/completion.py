"""openshelf completion: what bash, zsh or fish needs to complete commands, options and the names of spaces.

The script is made from the commands themselves, so it cannot fall behind them. It has all words in it: only names of
spaces are looked up when somebody presses Tab, by a listing of their directory.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from openshelf.cli._arguments import add_json
from openshelf.cli._shells import SCRIPTS
from openshelf.cli._tree import commands_of

_EPILOG = """\
examples:
  openshelf completion bash > ~/.local/share/bash-completion/completions/openshelf    in every bash
  openshelf completion zsh > "${fpath[1]}/_openshelf"                                 in every zsh
  openshelf completion fish > ~/.config/fish/completions/openshelf.fish               in every fish
  source <(openshelf completion bash)                                                 in this shell; zsh likewise
  openshelf completion fish | source"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        help="complete commands in your shell",
        description="Prints a script with which bash, zsh or fish completes commands, options and names of spaces.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    script = SCRIPTS[args.shell](list(commands_of(args.whole)))
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script)
    return 0
