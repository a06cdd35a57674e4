"""Offload is a house with floors: a room imports its own files and those of rooms below it, and no room is too full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import openshelf.offload
from tests.imports import imports_of

HOUSE = Path(openshelf.offload.__file__).parent
TESTS = Path(__file__).parent
NAME = "openshelf.offload"
FLOORS = ("cache", "program", "capture", "weights", "move", "measure", "planner", "run", "decoder", "api", "wrapped")
FILES = sorted(path for path in HOUSE.rglob("*.py") if path != HOUSE / "__init__.py")
MOST_LINES, MOST_FILES = 500, 25
PUBLIC = {
    "Buckets",
    "Change",
    "Check",
    "Decoder",
    "Detach",
    "Homes",
    "Lane",
    "ModelPlan",
    "Mover",
    "Op",
    "Packed",
    "Plan",
    "Prefetch",
    "Program",
    "Rates",
    "Run",
    "Runner",
    "Span",
    "Step",
    "Storage",
    "Store",
    "Wait",
    "Wrapped",
    "arguments_of",
    "buckets",
    "calibrate",
    "decode",
    "lifetimes",
    "make_plan",
    "measured",
    "pack_state",
    "plan",
    "simulate",
    "torch",
    "wrap",
}


def floor_of(module: str) -> int | None:
    """The floor of openshelf.offload.<room>...; None for what is not in the house, and for its front door."""
    parts = module.split(".")
    return FLOORS.index(parts[2]) if module.startswith(f"{NAME}.") else None


def wrong(source: str, module: str) -> set[str]:
    """Imports of a higher room; and of the house by its front door, which stands above all rooms."""
    own, found = floor_of(module), set()
    for target in imports_of(source, module, ("openshelf", NAME)):
        if target == NAME or (target.startswith(f"{NAME}.") and target.split(".")[2] not in FLOORS):
            found.add(target)
        floor = None if target in found else floor_of(target)
        if own is not None and floor is not None and floor > own:
            found.add(target)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_rooms_import_lower_rooms_only(path: Path) -> None:
    module = ".".join([NAME, *path.relative_to(HOUSE).with_suffix("").parts])
    assert not wrong(path.read_text(), module)


def test_the_check_of_rooms_sees_a_higher_room() -> None:
    upper = "openshelf.offload.run.executor"
    assert wrong(f"from {upper} import Executor", "openshelf.offload.move.mover") == {upper}
    assert wrong(f"import {upper} as e", "openshelf.offload.planner.offsets.sweep") == {upper}
    assert wrong(f"def f():\n    from {upper} import Executor", "openshelf.offload.capture.capture") == {upper}
    assert wrong("from ..run.executor import Executor", "openshelf.offload.move.mover") == {upper}
    assert wrong("from openshelf.offload import api", "openshelf.offload.run.runner") == {"openshelf.offload.api"}
    assert wrong("from openshelf.offload import plan", "openshelf.offload.run.runner") == {"openshelf.offload.plan"}
    assert wrong("from openshelf import offload", "openshelf.offload.run.runner") == {"openshelf.offload"}
    assert wrong("from openshelf.offload.program.call import Call", "openshelf.offload.move.mover") == set()
    assert wrong("from openshelf.offload import cache", "openshelf.offload.move.mover") == set()


def test_the_checker_of_plans_shares_nothing_with_planners() -> None:
    known = imports_of((HOUSE / "planner" / "verify.py").read_text(), "openshelf.offload.planner.verify")
    assert {one for one in known if one.startswith(NAME)} == {
        f"{NAME}.program.{one}" for one in ("lifetimes", "program", "steps")
    }


def deeper(source: str) -> set[str]:
    """Modules of the house that somebody outside imports, past its front door."""
    return {
        target
        for target in imports_of(source, "outside", ("openshelf", NAME))
        if target.startswith(f"{NAME}.") and target.split(".")[2] not in openshelf.offload.__all__
    }


def test_others_come_in_by_the_front_door() -> None:
    root = TESTS.parents[1]
    others = [path for top in ("src", "tests", "bench", "examples") for path in (root / top).rglob("*.py")]
    others = [path for path in others if not path.is_relative_to(HOUSE) and not path.is_relative_to(TESTS)]
    assert not {path: found for path in others if (found := deeper(path.read_text()))}
    assert deeper("from openshelf.offload.run.runner import Runner") == {"openshelf.offload.run.runner"}
    assert deeper("from openshelf.offload import Runner, cache") == {"openshelf.offload.cache"}


def test_public_names_are_these_and_come_without_torch() -> None:
    assert set(openshelf.offload.__all__) == PUBLIC
    code = "import sys, openshelf.offload; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_file_is_in_a_room() -> None:
    assert {path.relative_to(HOUSE).parts[0].removesuffix(".py") for path in FILES} == set(FLOORS)


@pytest.mark.parametrize("top", [HOUSE, TESTS], ids=["package", "tests"])
def test_no_file_is_too_long_and_no_room_too_full(top: Path) -> None:
    files = list(top.rglob("*.py"))
    assert not [path for path in files if len(path.read_text().splitlines()) > MOST_LINES]
    folders = {path.parent for path in files}
    assert not [folder for folder in folders if len(list(folder.glob("*.py"))) > MOST_FILES]
