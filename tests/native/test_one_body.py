"""The check for two bodies of one name finds them, and no others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.one_body import several_bodies

pytestmark = pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
FLAGS = ["-O0", "-fno-inline", "-ffunction-sections", "-fPIC", "-c"]


def compiled(folder: Path, **sources: str) -> list[Path]:
    for name, text in sources.items():
        (folder / f"{name}.cpp").write_text(text)
        subprocess.run(["c++", *FLAGS, f"{name}.cpp"], cwd=folder, check=True)
    return [folder / f"{name}.o" for name in sources]


def test_two_bodies_are_found(tmp_path: Path) -> None:
    slot = (
        "inline unsigned slot_of(unsigned long word) {{ return unsigned(word >> {}); }}\n"
        "unsigned {}() {{ return slot_of(1); }}\n"
    )
    paths = compiled(tmp_path, coherence=slot.format(8, "a"), tiers=slot.format(32, "b"))
    assert several_bodies(paths) == {"_Z7slot_ofm": paths}


def test_a_call_of_another_function_is_another_body(tmp_path: Path) -> None:
    text = "void low();\nvoid high();\ninline void go() {{ {}(); }}\nvoid {}() {{ go(); }}\n"
    paths = compiled(tmp_path, one=text.format("low", "a"), two=text.format("high", "b"))
    assert list(several_bodies(paths)) == ["_Z2gov"]


def test_one_body_in_many_files_is_none_of_them(tmp_path: Path) -> None:
    text = (
        '#include <string>\ninline std::string name() {{ return "a name"; }}\n'
        "std::string {}() {{ return name() + name(); }}\n"
    )
    paths = compiled(tmp_path, one=text.format("a"), two='const char* other = "b";\n' + text.format("b"))
    assert several_bodies(paths) == {}
