"""Space: one global address space, and the arrays in it."""

from openshelf.space._array import Array
from openshelf.space._atomic import Atomic
from openshelf.space._folder import Entry, Folder
from openshelf.space._sizes import format_size, parse_size
from openshelf.space._space import Space, Where, spaces
from openshelf.space._sync import Barrier, Channel, Counter, Lock

__all__ = [
    "Array",
    "Atomic",
    "Barrier",
    "Channel",
    "Counter",
    "Entry",
    "Folder",
    "Lock",
    "Space",
    "Where",
    "format_size",
    "parse_size",
    "spaces",
]
