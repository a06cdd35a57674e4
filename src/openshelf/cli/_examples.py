"""Examples in the help of commands: `openshelf fabric show` and the like are given those of `openshelf fabric`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

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
