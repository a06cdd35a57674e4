from __future__ import annotations

from collections.abc import Iterator

import pytest

from openshelf import KVPool, Space
from tests.kv.prompts import assert_sound, small_pool


@pytest.fixture
def pool(space: Space) -> Iterator[KVPool]:
    """A pool of about 64 blocks, sound at the end of the test."""
    with small_pool(space) as made:
        yield made
        assert_sound(made)
