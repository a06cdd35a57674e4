"""The extension is built so that a mistake in it is harder to use: its own headers say so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import elf

FORTIFIED = {
    "__memcpy_chk",
    "__memmove_chk",
    "__memset_chk",
    "__strcpy_chk",
    "__snprintf_chk",
    "__vsnprintf_chk",
    "__read_chk",
}
SOURCE = """
#include <string.h>
#include <stdio.h>
int fill(const char* from, size_t count) { char room[64]; memcpy(room, from, count); return puts(room); }
#ifdef IN_CODE
__asm__(".text\\n.quad fill\\n");
#endif
#ifdef WRITABLE
__asm__(".section both, \\"awx\\"\\n.quad 0\\n.text\\n");
#endif
"""
HARD = "-O2 -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack"


def weaknesses(one: elf.Elf) -> set[str]:
    """What lets an attacker write over code or addresses of code, or write past a buffer unnoticed."""
    kinds = {segment.kind: segment for segment in one.segments}
    flags, flags_1 = one.dynamic.get(elf.DT_FLAGS, 0), one.dynamic.get(elf.DT_FLAGS_1, 0)
    both = elf.WRITE | elf.EXECUTE
    found = {
        "no RELRO": elf.PT_GNU_RELRO not in kinds,
        "bound lazily": not (flags & elf.DF_BIND_NOW or flags_1 & elf.DF_1_NOW or elf.DT_BIND_NOW in one.dynamic),
        "relocations in code": bool(flags & elf.DF_TEXTREL) or elf.DT_TEXTREL in one.dynamic,
        "executable stack": elf.PT_GNU_STACK not in kinds or bool(kinds[elf.PT_GNU_STACK].flags & elf.EXECUTE),
        "writable code": any(s.kind == elf.PT_LOAD and s.flags & both == both for s in one.segments),
        "no stack protector": "__stack_chk_fail" not in one.imports,
        "not fortified": not FORTIFIED & one.imports,
    }
    return {name for name, so in found.items() if so}


def test_extension_is_hardened() -> None:
    if elf.sanitizer():
        pytest.skip(f"built with the {elf.sanitizer()} sanitizer, which has checks of its own")
    assert weaknesses(elf.extension()) == set()


@pytest.mark.parametrize(
    ("flags", "weakness"),
    [
        ("", set()),
        ("-Wl,-z,norelro", {"no RELRO"}),
        ("-Wl,-z,lazy", {"bound lazily"}),
        ("-Wl,-z,notext -DIN_CODE", {"relocations in code"}),
        ("-Wl,-z,execstack", {"executable stack"}),
        ("-DWRITABLE", {"writable code"}),
        ("-fno-stack-protector", {"no stack protector"}),
        ("-U_FORTIFY_SOURCE", {"not fortified"}),
    ],
)
def test_missing_flag_is_found(tmp_path: Path, flags: str, weakness: set[str]) -> None:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    source, built = tmp_path / "one.c", tmp_path / "one.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", *HARD.split(), *flags.split(), "-o", built, source], check=True)
    assert weaknesses(elf.Elf(built)) == weakness
