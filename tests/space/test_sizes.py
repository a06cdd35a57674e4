"""Sizes as people write them."""

from __future__ import annotations

import pytest

from openshelf.errors import BadInput
from openshelf.space import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("1.5GB", 1_500_000_000), (4096, 4096), ("17 B", 17), ("0.5 kib", 512)]
)
def test_size_is_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["1.5", 1.5, "x", -1, "0", "3 parsecs", True, "", "GiB", "1e9", "-2GiB", 1 << 63, 10**30, "9e99TiB", "8388608TiB"],
)
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(BadInput, match=r"not a size|positive and less than 2"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(17, "17 B"), (2 << 30, "2 GiB"), (1536, "1.5 KiB"), (1023, "1023 B"), (5 << 50, "5120 TiB")]
)
def test_size_is_written(size: int, text: str) -> None:
    assert format_size(size) == text
