"""Who the hosts of a space are: a fixed list, or what the hosts agree on in etcd.

A keeper imports this package without any other of Openshelf, so it needs nothing but Python's own library.
"""

from openshelf.membership.agent import Agent
from openshelf.membership.agreed import LEASE_S, Agreed, GivenUp
from openshelf.membership.base import MOST_REPLICAS, Copy, Kept, Membership, Owner, Spec, Ticket, View
from openshelf.membership.copied import Copied, Found
from openshelf.membership.etcd import Etcd
from openshelf.membership.fixed import Fixed
from openshelf.membership.records import realm_of
from openshelf.membership.store import Pair, Store
from openshelf.membership.table import Table, read_table, write_table

__all__ = [
    "LEASE_S",
    "MOST_REPLICAS",
    "Agent",
    "Agreed",
    "Copied",
    "Copy",
    "Etcd",
    "Fixed",
    "Found",
    "GivenUp",
    "Kept",
    "Membership",
    "Owner",
    "Pair",
    "Spec",
    "Store",
    "Table",
    "Ticket",
    "View",
    "read_table",
    "realm_of",
    "write_table",
]
