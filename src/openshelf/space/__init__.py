"""Space: one global address space, and the arrays in it."""

from openshelf.space._array import Array
from openshelf.space._atomic import Atomic
from openshelf.space._folder import Entry, Folder
from openshelf.space._hosts import Hosts, new_hosts_file, own_number, read_hosts
from openshelf.space._keepers import run_keeper
from openshelf.space._placement import Placement, place
from openshelf.space._replica import Replica
from openshelf.space._sizes import format_size, parse_size
from openshelf.space._space import Space, Where, spaces
from openshelf.space._sync import Barrier, Channel, Counter, Lock
from openshelf.space._tiered import tiers_of
from openshelf.space._transfer import Transfer
from openshelf.space.devices import Device

__all__ = [
    "Array",
    "Atomic",
    "Barrier",
    "Channel",
    "Counter",
    "Device",
    "Entry",
    "Folder",
    "Hosts",
    "Lock",
    "Placement",
    "Replica",
    "Space",
    "Transfer",
    "Where",
    "format_size",
    "new_hosts_file",
    "own_number",
    "parse_size",
    "place",
    "read_hosts",
    "run_keeper",
    "spaces",
    "tiers_of",
]
