"""What tests of models share with those of offload."""

from tests.offload.conftest import one_thread, own_cache

__all__ = ["one_thread", "own_cache"]
