"""A model, and a pool for its cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from openshelf import KVPool, Space
from tests.kv.prompts import assert_sound


@pytest.fixture(scope="module")
def llama() -> Any:
    from tests.adapters.transformers.models import model_of  # needs transformers, as every test with this fixture does

    return model_of("llama")


@pytest.fixture
def pooled(space: Space, llama: Any) -> Iterator[KVPool]:
    """A pool for its cache, sound at the end of the test."""
    from tests.adapters.transformers.models import pool_of

    with pool_of(space, llama) as made:
        yield made
        assert_sound(made)
