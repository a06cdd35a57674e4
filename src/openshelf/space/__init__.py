"""Space: one global address space, and the arrays in it."""

from openshelf._sizes import format_size, parse_size
from openshelf.space.array import Array
from openshelf.space.atomic import Atomic
from openshelf.space.devices.device import Device
from openshelf.space.devices.placement import Placement, place
from openshelf.space.devices.replica import Replica
from openshelf.space.folder import Entry, Folder
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.hosts.hosts_file import Hosts, new_hosts_file, own_number, read_hosts
from openshelf.space.hosts.start_keeper import run_keeper
from openshelf.space.locality.flash import tiers_of
from openshelf.space.space import Space, Where, spaces
from openshelf.space.sync import Barrier, Channel, Counter, Lock
from openshelf.space.transfer import Transfer

__all__ = [
    "Array",
    "Atomic",
    "Barrier",
    "Channel",
    "Cluster",
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
