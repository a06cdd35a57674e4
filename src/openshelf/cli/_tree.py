"""The commands as a shell sees them: words to offer, and what arguments and values of options are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

from openshelf.cli._arguments import completes


class Option(NamedTuple):
    names: tuple[str, ...]
    help: str
    takes: str  # what its value is: a word of `completes`, "value", or "" if it has none
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A command as a shell sees it. `path`: what is typed before its arguments, without the program's name."""

    path: tuple[str, ...]
    help: str
    commands: tuple[tuple[str, str], ...]  # below it, with their help
    options: tuple[Option, ...]
    takes: tuple[str, ...]  # what its arguments are
    choices: tuple[str, ...]


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), help: str = "") -> Iterator[Command]:
    """The command of a parser, and all below it."""
    below: dict[str, argparse.ArgumentParser] = {}
    helps: dict[str, str] = {}
    options: list[Option] = []
    takes: list[str] = []
    choices: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            helps = {str(one.dest): one.help or "" for one in action._choices_actions}
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            value = "" if action.nargs == 0 else completes(action) or "value"
            options.append(Option(tuple(action.option_strings), _line(action.help), value, _words(action.choices)))
        else:
            takes.append(completes(action))
            choices += _words(action.choices)
    known = tuple((name, _line(helps.get(name))) for name in below)
    yield Command(path, _line(help), known, tuple(options), tuple(filter(None, takes)), tuple(choices))
    for name, one in below.items():
        yield from commands_of(one, (*path, name), helps.get(name, ""))


def _words(choices: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in choices or ())


def _line(help: str | None) -> str:
    return " ".join((help or "").split())
