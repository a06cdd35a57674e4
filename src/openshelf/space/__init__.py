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
from openshelf.space.hosts.join import host_of, make_part
from openshelf.space.hosts.start_keeper import run_keeper
from openshelf.space.locality.flash import tiers_of
from openshelf.space.look import describe_space, hosts_of, look
from openshelf.space.numbers import array_name
from openshelf.space.sent import Address, Handle, address_of, arrive, open_address, refuse, send
from openshelf.space.space import Space, Where, spaces, stale_spaces
from openshelf.space.sync import Barrier, Channel, Counter, Lock
from openshelf.space.transfer import Transfer

__all__ = [
    "Address",
    "Array",
    "Atomic",
    "Barrier",
    "Channel",
    "Cluster",
    "Counter",
    "Device",
    "Entry",
    "Folder",
    "Handle",
    "Hosts",
    "Lock",
    "Placement",
    "Replica",
    "Space",
    "Transfer",
    "Where",
    "address_of",
    "array_name",
    "arrive",
    "describe_space",
    "format_size",
    "host_of",
    "hosts_of",
    "look",
    "make_part",
    "new_hosts_file",
    "open_address",
    "own_number",
    "parse_size",
    "place",
    "read_hosts",
    "refuse",
    "run_keeper",
    "send",
    "spaces",
    "stale_spaces",
    "tiers_of",
]
