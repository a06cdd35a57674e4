from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from openshelf import KVPool, Space
from tests.kv.prompts import assert_sound, small_pool


@pytest.fixture
def pool(space: Space) -> Iterator[KVPool]:
    """A pool of about 64 blocks, sound at the end of the test."""
    with small_pool(space) as made:
        yield made
        assert_sound(made)


@pytest.fixture(scope="module")
def llama() -> Any:
    from tests.kv.models import model_of  # needs transformers, as every test with this fixture does

    return model_of("llama")


@pytest.fixture
def pooled(space: Space, llama: Any) -> Iterator[KVPool]:
    """A pool for its cache, sound at the end of the test."""
    from tests.kv.models import pool_of

    with pool_of(space, llama) as made:
        yield made
        assert_sound(made)
