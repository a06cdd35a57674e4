"""A process group of one, which TorchRec needs even for one process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Sharded modules are in cycles, and keep views of a space: what was frozen after a test is looked at again."""
    yield
    gc.unfreeze()
    gc.collect()
