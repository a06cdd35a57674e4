"""Openshelf: one memory address space for AI."""

from openshelf.errors import OpenshelfError
from openshelf.fabric import Fabric
from openshelf.kv import KVPool, Layout
from openshelf.space import Array, Atomic, Barrier, Channel, Counter, Folder, Lock, Space, Transfer, Where, spaces
from openshelf.tables import Table

__all__ = [
    "Array",
    "Atomic",
    "Barrier",
    "Channel",
    "Counter",
    "Fabric",
    "Folder",
    "KVPool",
    "Layout",
    "Lock",
    "OpenshelfError",
    "Space",
    "Table",
    "Transfer",
    "Where",
    "spaces",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # asked for seldom, and dear to find
        from importlib.metadata import version

        return version("openshelf")
    raise AttributeError(f"module 'openshelf' has no attribute {name!r}")
