"""A table in a space with a flash tier, in processes that notice touches and in those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, Table
from openshelf.tables import Uniform


@pytest.mark.parametrize("faults", ["on", "off"])
def test_rows_that_were_on_flash_are_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: str
) -> None:
    monkeypatch.setenv("OPENSHELF_FAULTS", faults)
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    space = Space.create("tiered", "32MiB", flash=f"{tmp_path / 'file'}:128MiB")
    table = Table.create(space, "t", rows=8000, dim=64, init=Uniform(1, 2, 3))  # 2 MB
    rows = table.lookup(range(8000))
    table.close()
    for number in range(10):  # which push the rows out
        space.put(f"other{number}", np.full(1 << 20, number, np.float32))
    assert space.describe()["tiers"]["flash_bytes"] > 8 << 20
    again = Table.open(space, "t")
    assert np.array_equal(again.lookup(range(8000)), rows)
    again.grow(1000)
    assert again.lookup([8999]).all()
    space.delete("t")
    again.close()
    space.close()
    Space.remove("tiered")
