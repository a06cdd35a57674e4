"""`openshelf create` and `openshelf rm --stale`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openshelf import Space
from openshelf.cli import main, rm
from openshelf.space import spaces, tiers_of

RUN = "import sys; from openshelf.cli import main; sys.exit(main())"


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert main(args) == code
    found = capsys.readouterr()
    return found.err if code else found.out


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    return json.loads(said(capsys, *args, "--json"))


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces count as old at once."""
    monkeypatch.setattr(rm, "_YOUNG_S", 0.0)


def test_create_makes_a_space_that_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Space.open('demo')" in said(capsys, "create", "demo", "--dram", "16MiB")
    with Space.open("demo") as space:
        assert space.describe()["bytes"] == 16 << 20
    assert "exists already" in said(capsys, "create", "demo", "--dram", "16MiB", code=1)
    assert answer(capsys, "create", "demo", "--dram", "16MiB", "--exist-ok")["bytes"] == 16 << 20
    assert "not a size" in said(capsys, "create", "other", "--dram", "much", code=1)
    assert "needs a flash tier" in said(capsys, "create", "other", "--dram", "16MiB", "--durable", code=1)


def test_create_with_flash_holds_as_much_as_the_flash(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSHELF_LINGER", "0")
    flash = f"{tmp_path / 'flash'}:128MiB"
    assert answer(capsys, "create", "deep", "--dram", "32MiB", "--flash", flash, "--durable")["name"] == "deep"
    assert tiers_of("deep")["deep"]["durable"]
    Space.remove("deep")


def test_stale_spaces_are_listed_and_with_yes_removed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, old: None
) -> None:
    monkeypatch.setenv("OPENSHELF_LINGER", "0")
    for name in ("left", "also-left", "damaged"):
        Space.create(name, dram="16MiB").close()
    (home / "damaged" / "control").write_bytes(b"nonsense")
    Space.create("kept", dram="32MiB", flash=f"{tmp_path / 'flash'}:128MiB", durable=True).close()
    with Space.create("used", dram="16MiB"):
        text = said(capsys, "rm", "--stale")
        assert re.search(r"also-left .* 16 MiB", text)
        assert re.search(r"damaged .* damaged, so nobody can tell who has it open: .*not the control file", text)
        assert re.search(r"kept .* durable", text)
        assert re.search(r"used .* open in 1 process ", text)
        assert "nothing was removed; --yes" in text
        assert len(spaces()) == 5
        assert [one["name"] for one in answer(capsys, "rm", "--stale")["stale"]] == ["also-left", "left"]
        (home / "left" / "of a user").touch()
        done = answer(capsys, "rm", "--stale", "--yes")
        assert done["removed"] == ["also-left"]
        assert list(done["left"]) == ["damaged", "kept", "used", "left"]
        assert "are not the space's" in done["left"]["left"]
        (home / "left" / "of a user").unlink()
        assert answer(capsys, "rm", "--stale", "--yes")["removed"] == ["left"]
        assert [one["name"] for one in spaces()] == ["damaged", "kept", "used"]
        assert "no stale spaces" in said(capsys, "rm", "--stale", "--yes")
    Space.remove("kept")


def test_a_space_that_was_just_made_is_not_stale(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Space.create("new", dram="16MiB").close()
    left = {"new": "it was made just now"}
    assert answer(capsys, "rm", "--stale", "--yes") == {"stale": [], "removed": [], "left": left}


def test_stale_goes_with_no_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["rm"], ["rm", "demo", "--yes"], ["rm", "demo", "--stale"], ["rm", "--stale", "--force"]):
        said(capsys, *wrong, code=1)


@pytest.mark.parametrize(("typed", "left"), [("y", 0), ("", 1)])
def test_on_a_terminal_it_asks(home: Path, typed: str, left: int) -> None:
    Space.create("old", dram="16MiB").close()
    ours, theirs = pty.openpty()
    program = f"from openshelf.cli import rm; rm._YOUNG_S = 0.0; {RUN}"
    with subprocess.Popen([sys.executable, "-c", program, "rm", "--stale"], stdin=theirs, stdout=theirs) as process:
        os.close(theirs)
        text = b""
        while b"[y/N]" not in text:
            assert select.select([ours], [], [], 60)[0], text
            text += os.read(ours, 1000)
        os.write(ours, f"{typed}\n".encode())
        assert process.wait(60) == 0
    os.close(ours)
    assert len(spaces()) == left
