"""Whatever is given for an argument of a space, an array or what processes wait with: no other library's exception."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadInput, Mismatch, OutOfRange, UnknownName
from openshelf.space import spaces
from tests.junk import raw_errors, raw_errors_of_methods

CREATE = ("name", "dram", "flash", "durable", "exist_ok", "backing", "group", "base", "reserve", "temporary")


def test_making_opening_and_removing(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Space.create("shelf", "16MiB").close()
    for argument in CREATE:

        def create(junk: Any, argument: str = argument) -> None:
            Space.create(**{"name": "new", "dram": "1MiB", argument: junk}).close()
            for there in spaces():
                if there["name"] != "shelf":
                    Space.remove(there["name"])

        assert raw_errors(create) == [], argument
    for argument in ("name", "mode", "contribute", "unit", "hosts"):
        for name in ("shelf", "openshelf://127.0.0.1:7400/shelf"):

            def opened(junk: Any, argument: str = argument, name: str = name) -> None:
                Space.open(**{"name": name, argument: junk}).close()

            assert raw_errors(opened) == [], argument
    assert raw_errors(Space.members) == []
    assert raw_errors(Space.remove) == []
    assert raw_errors(lambda junk: Space.temporary(junk).close()) == []
    with pytest.raises(BadInput, match="the name of a space is text, got None"):
        Space.create(None, "1MiB")  # type: ignore[arg-type]


GOOD: dict[str, Any] = {
    "name": "a", "to": "b", "shape": 3, "value": np.zeros(3), "parties": 1, "more": "1MiB", "index": 0, "message": b"x",
    "expected": 5, "desired": 1, "dtype": "int8", "priority": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["space", "folder", "int32", "bfloat16", "channel", "barrier", "counter", "atomic"])
def test_every_argument_of_every_method(space: Space, kind: str) -> None:
    things: dict[str, Any] = {
        "space": lambda: space,
        "folder": lambda: space.folder("f"),
        "int32": lambda: space.zeros("x", (4, 2), "int32"),
        "bfloat16": lambda: space.zeros("x", (4, 2), "bfloat16"),
        "channel": lambda: space.channel("x", 1 << 10),
        "barrier": lambda: space.barrier("x", 1),
        "counter": lambda: space.counter("x"),
        "atomic": lambda: space.zeros("x", 4, "int32").atomic(),
    }
    thing = things[kind]()
    good = GOOD | {"address": space.put("y", np.zeros(3)).address, "where": [space["y"]]}
    assert raw_errors_of_methods(thing, good, besides=("close", "torch")) == []
    if kind in ("space", "folder", "int32", "bfloat16"):
        assert raw_errors(lambda junk: thing[junk]) == []
        assert raw_errors(lambda junk: junk in thing) == []
        assert raw_errors(lambda junk: thing.__setitem__(junk, 1)) == []
        assert raw_errors(lambda junk: thing.__setitem__("x" if kind in ("space", "folder") else 0, junk)) == []
    if kind == "counter":
        assert raw_errors(lambda junk: setattr(thing, "value", junk)) == []


def test_what_was_expected_is_named(space: Space) -> None:
    with pytest.raises(BadInput, match="exist_ok is True or False, got 'yes'"):
        Space.create("shelf", "64MiB", exist_ok="yes")  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match=r"home is a host's name or number, got 1\.5"):
        space.new("a", 3, home=1.5)  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match="numpy makes no array of this list"):
        space.put("a", [[1], [1, 2]])
    with pytest.raises(Mismatch, match=r"'text' is no value for int8 \(3,\): "):
        space.full("a", 3, "text", "int8")
    with pytest.raises(Mismatch, match=r"300 is no value for int8 \(3,\): .*out of bounds"):
        space.full("a", 3, 300, "int8")
    with pytest.raises(Mismatch, match="is no value for bfloat16"):
        space.full("a", 3, "text", "bfloat16")
    with pytest.raises(BadInput, match="backing is a path"):
        Space.create("other", "1MiB", backing=5)  # type: ignore[arg-type]
    for name in ("-x", ".hidden", "\xe9", "a b"):
        with pytest.raises(BadInput, match=r"a-z, A-Z, 0-9, '_', '-', '\.', the first a letter, a digit or '_'"):
            Space.create(name, "1MiB")
    assert list(space) == []


def test_a_directory_that_is_no_space_is_said_to_be_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for call in (Space.open, Space.remove):
        with pytest.raises(UnknownName, match="that directory has none of the files of one"):
            call(tmp_path)


def test_what_a_user_gets_has_a_name_for_its_repr(space: Space) -> None:
    made = [space.folder("f"), space.lock("l"), space.barrier("b", 1), space.counter("c"), space.channel("q", 2, 8)]
    assert list(map(repr, made)) == ["Folder('f/')", "Lock('l')", "Barrier('b')", "Counter('c')", "Channel('q')"]
    assert repr(space.zeros("word", 2, "int32").atomic(1)) == "Atomic(int32 at byte 4 of 'word')"


def test_a_number_that_is_no_element_is_out_of_range(space: Space) -> None:
    array = space.zeros("a", (2, 3), "int64")
    for index in (-1, 6):
        with pytest.raises(OutOfRange, match="is out of range for an array of 6 elements"):
            array.atomic(index)
