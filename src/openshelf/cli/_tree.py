"""The commands as a tree: what a shell offers for their words, and which examples their help has."""

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


# Examples: `openshelf fabric show` and the like are given those of `openshelf fabric`.

_HEAD = "examples:\n"


class _Wrapped(argparse.HelpFormatter):
    """Lines as they are written, where there are several; a single one is wrapped."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(f"{indent}{line}" for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def parts_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below one, by name; none if it does something itself."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def examples_of(parser: argparse.ArgumentParser) -> list[str]:
    """The lines of its examples, as they are in its help."""
    _, there, rest = (parser.epilog or "").partition(_HEAD)
    return list(_lines(rest)) if there else []


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if not line.startswith("  "):
            return
        yield line.strip()


def hand_examples_down(parser: argparse.ArgumentParser) -> None:
    """Gives every command below one that has no examples of its own those lines of the one above that are of it."""
    for part in parts_of(parser).values():
        if not examples_of(part):
            own = [line for line in examples_of(parser) if line == part.prog or line.startswith(f"{part.prog} ")]
            if own:
                text = _HEAD + "\n".join(f"  {line}" for line in own)
                part.epilog = f"{part.epilog}\n\n{text}" if part.epilog else text
                part.formatter_class = _Wrapped
        hand_examples_down(part)
