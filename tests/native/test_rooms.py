"""The native core's rooms: each folder is a namespace, and includes go down only, as native/base/rooms.hpp says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
FILES = sorted(path for path in NATIVE.glob("*/*.[ch]pp") if path.parent.name != "tests")
ROOM = re.compile(r"^namespace ([a-z]+) \{(.*)\}$", re.M)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
OPENED = re.compile(r"^namespace osf(?:::([a-z]+))? \{$", re.M)


def rooms(text: str) -> dict[str, set[str]]:
    """The rooms that each room sees, in the order of the file."""
    return {name: set(re.findall(r"using namespace ([a-z]+);", sees)) for name, sees in ROOM.findall(text)}


ROOMS = rooms((NATIVE / "base/rooms.hpp").read_text())


def strange_includes(room: str, text: str) -> list[str]:
    """Headers of rooms that this one does not see, or that are named without their room."""
    seen = {room, "base"} | ROOMS.get(room, set())
    return [name for name in INCLUDE.findall(text) if name.split("/")[0] not in seen]


def strange_names(room: str, text: str) -> list[str]:
    """Namespaces of other rooms that a file opens; one that only declares a class there may."""
    opened = [(match[1] or "base", text[match.end() :]) for match in OPENED.finditer(text)]
    return [name for name, rest in opened if name != room and not re.match(r"\n(class|struct) \w+;\n\}", rest)]


def test_a_room_sees_only_rooms_below_it() -> None:
    below: set[str] = set()
    for room, sees in ROOMS.items():
        assert sees <= below, f"{room} sees {sees - below}, which do not come before it"
        below.add(room)
    assert {path.parent.name for path in FILES} == (set(ROOMS) - {"test"}) | {"base"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(NATIVE)))
def test_a_file_includes_and_names_what_its_room_sees(path: Path) -> None:
    text = path.read_text()
    assert not strange_includes(path.parent.name, text)
    assert not strange_names(path.parent.name, text)


def test_planted_violations_are_found() -> None:
    assert strange_includes("space", '#include "tiers/client.hpp"\n') == ["tiers/client.hpp"]
    assert strange_includes("tiers", '#include "kv/format.hpp"\n#include "space/space.hpp"\n') == ["kv/format.hpp"]
    assert strange_includes("space", '#include "heap.hpp"\n') == ["heap.hpp"]
    assert strange_names("tiers", "namespace osf {\n\nint slot();\n") == ["base"]
    assert strange_names("kv", "namespace osf::tiers {\nclass TierClient;\n}\n") == []
    assert rooms("namespace low { using namespace high; }\nnamespace high {}\n") == {"low": {"high"}, "high": set()}
