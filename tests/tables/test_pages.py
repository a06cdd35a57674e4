"""Rows in huge pages, where the kernel joins small ones on request."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.tables import Uniform

BLOCK = 2 << 20
COLLAPSE = 25


def kernel_joins_pages() -> bool:
    """As in a space: shared memory, at an address that is a multiple of 2 MiB."""
    fd = os.memfd_create("pages")
    os.ftruncate(fd, 4 * BLOCK)
    memory = mmap.mmap(fd, 4 * BLOCK)
    os.close(fd)
    memory[:] = bytes(4 * BLOCK)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if first % BLOCK:  # mmap need not give such an address
        return False
    return bool(ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(BLOCK), COLLAPSE) == 0)


def test_a_large_table_is_in_huge_pages_and_its_rows_are_right() -> None:
    if not kernel_joins_pages():
        pytest.skip("this kernel does not join pages of shared memory")
    with Space.temporary("32MiB") as space:
        table = Table.create(space, "t", rows=20_000, dim=128, init=Uniform(-1, 1, 1))  # 10 MB
        assert space.describe()["huge_bytes"] >= 3 * BLOCK
        small = Table.create(space, "small", rows=20, dim=128, init=Uniform(-1, 1, 1))
        assert np.array_equal(table.lookup(range(20)), small.lookup(range(20)))
        before = space.describe()["huge_bytes"]
        table.grow(20_000)
        assert space.describe()["huge_bytes"] > before
        assert table.lookup([39_999]).any()
