"""Openshelf: one memory address space for AI."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.errors import OpenshelfError
from openshelf.space import Array, Atomic, Barrier, Channel, Counter, Folder, Lock, Space, Transfer, Where, spaces

if TYPE_CHECKING:
    from openshelf.fabric import Fabric
    from openshelf.kv import KVPool, Layout
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

# Read when first asked for: most processes use a space alone, and many are started.
_LATER = {"Fabric": "fabric", "KVPool": "kv", "Layout": "kv", "Table": "tables"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = getattr(import_module(f"openshelf.{_LATER[name]}"), name)
    elif name in _LATER.values():
        return import_module(f"openshelf.{name}")
    elif name == "__version__":  # asked for seldom, and dear to find
        from importlib.metadata import version

        found = version("openshelf")
    else:
        raise AttributeError(f"module 'openshelf' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER.values()})
