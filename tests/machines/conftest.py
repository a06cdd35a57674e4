"""Tests in guests: run by `make test-machines`, which prepares what they need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.machines import guest
from tests.machines.prepare import KERNELS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(guest.VARIABLE):
        return
    without = pytest.mark.skip(reason=f"guests are started by make test-machines, which sets {guest.VARIABLE}")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(without)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)
