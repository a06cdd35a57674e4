"""The documents, taken apart: prose, headings, links, tables and blocks of code.

A block that cannot run has the reason in a comment right before it: `<!-- not run: needs two machines -->`. What a
block needs and would only distract in print is in such a comment, too: `<!-- before:` and lines of Python, then `-->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNS = ("python", "sh", "console")  # blocks in these languages run, or say why not
_COMMENT = re.compile(r"<!-- (?P<kind>not run|before):(?P<text>.*)-->\s*\Z", re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its first line's number in the page, and what its comment says."""

    language: str
    line: int
    text: str
    not_run: str = ""
    before: str = ""


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    comment = ""  # that ended just before
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line.startswith("<!-- "):
            comment = line
            while not comment.endswith("-->"):
                comment += "\n" + next(lines)[1]
        elif line.startswith("```"):
            inside: list[str] = []
            for _, each in lines:
                if each.startswith("```"):
                    break
                inside.append(each)
            said = _COMMENT.search(comment)
            words = {said["kind"]: said["text"].strip()} if said else {}
            found.append(
                Block(
                    line[3:].strip(), number + 1, "\n".join(inside), words.get("not run", ""), words.get("before", "")
                )
            )
            comment = ""
        elif line.strip():
            comment = ""
    return found


def outside_of_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, but for those in blocks and comments."""
    inside = hidden = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
            continue
        if not inside and line.startswith("<!--"):
            hidden = True
        if not inside and not hidden:
            yield number, line
        if line.rstrip().endswith("-->"):
            hidden = False


def headings(text: str) -> list[str]:
    return [line.lstrip("#").strip() for _, line in outside_of_blocks(text) if re.match(r"#{1,6} ", line)]


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(text: str) -> list[tuple[int, str]]:
    """Links and pictures with their line numbers, outside of code."""
    found = []
    for number, line in outside_of_blocks(text):
        plain = re.sub(r"`[^`]*`", "", line)
        found += [(number, target) for target in re.findall(r"\]\(([^)\s]+)\)", plain)]
        found += [(number, target) for target in re.findall(r'(?:src|href)="([^"]+)"', plain)]
    return found


def tables(text: str) -> int:
    return sum(bool(re.match(r"\|[ :|-]+\|\s*$", line)) for _, line in outside_of_blocks(text))
