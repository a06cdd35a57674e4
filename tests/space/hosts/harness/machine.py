"""One machine instruction, callable: an atomic addition that no call of the package takes part in."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from typing import Any

# mov rax, rsi; lock xadd [rdi], rax; ret
_CODE = {"x86_64": b"\x48\x89\xf0\xf0\x48\x0f\xc1\x07\xc3"}
AVAILABLE = platform.machine() in _CODE
_page: Any = None


def fetch_add(hold_gil: bool) -> Callable[[int, int], int]:
    """A function (address, more) -> before; it is called with Python's global lock held, or not."""
    global _page
    if _page is None:
        _page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        _page.write(_CODE[platform.machine()])
    kind = ctypes.PYFUNCTYPE if hold_gil else ctypes.CFUNCTYPE
    made = kind(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    return made(ctypes.addressof(ctypes.c_char.from_buffer(_page)))
