"""Runs the blocks of a page in order, as a reader would: Python in one interpreter, shell lines beside it.

It is a program of its own, so that a page begins with nothing and leaves nothing: `python run_page.py PAGE...`. Several
pages, each with names and spaces of its own, share what takes long to import. Errors name the page and its line. The
working directory is the caller's to choose, and so are the directories of spaces.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import openshelf as osf
from tests.docs.pages import RUNS, Block, blocks


def shell(block: Block) -> str:
    """The commands of a block: all lines of `sh`, those behind a prompt of `console`."""
    if block.language == "sh":
        return block.text
    return "\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ "))


def plan_quickly(text: str) -> None:
    """A page shows what comes out, not how fast it would be: plans are not searched for ten seconds."""
    from openshelf import offload

    for name in ("plan", "decode", "buckets"):
        if f"offload.{name}(" in text:  # decode needs packages that others do not
            inspect.unwrap(getattr(offload, name)).__kwdefaults__["time_limit"] = 0.5


def run(page: Path) -> int:
    """How many blocks were run."""
    names: dict[str, object] = {"__name__": "__main__"}
    count = 0
    if "import offload" in page.read_text():
        plan_quickly(page.read_text())
    for block in blocks(page.read_text()):
        if block.language not in RUNS or block.not_run:
            continue
        count += 1
        if block.before:
            exec(compile(block.before, f"{page.name}, before line {block.line}", "exec"), names)
        if block.language == "python":
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(page), "exec"), names)
        else:
            done = subprocess.run(["sh", "-e", "-c", shell(block)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{page.name}, line {block.line}: {done.returncode}\n{done.stdout}{done.stderr}")
    return count


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(each, run(Path(each)))
        for control in Path(os.environ["OPENSHELF_DIR"]).glob("*/control"):
            if not (control.parent / "units").exists():  # a part of a space over several hosts, which has a keeper
                osf.Space.remove(control.parent.name)
