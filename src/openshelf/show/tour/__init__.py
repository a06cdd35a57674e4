"""The tour: one chapter per capability."""

from openshelf.show.tour.bare import serve_bare, time_bare
from openshelf.show.tour.courier_steps import courier
from openshelf.show.tour.fabric import fabric_chapter
from openshelf.show.tour.hosts import hosts_chapter
from openshelf.show.tour.kv import kv_chapter
from openshelf.show.tour.offload import offload_chapter
from openshelf.show.tour.orders import Failed, Line, obey
from openshelf.show.tour.space import space_chapter
from openshelf.show.tour.tables import tables_chapter
from openshelf.show.tour.tiers import tiers_chapter
from openshelf.show.tour.two_hosts import Host, TwoHosts, in_namespaces, on_loopback

CHAPTERS = {
    "space": space_chapter,
    "hosts": hosts_chapter,
    "kv": kv_chapter,
    "tiers": tiers_chapter,
    "offload": offload_chapter,
    "fabric": fabric_chapter,
    "tables": tables_chapter,
}

__all__ = [
    "CHAPTERS",
    "Failed",
    "Host",
    "Line",
    "TwoHosts",
    "courier",
    "fabric_chapter",
    "hosts_chapter",
    "in_namespaces",
    "kv_chapter",
    "obey",
    "offload_chapter",
    "on_loopback",
    "serve_bare",
    "space_chapter",
    "tables_chapter",
    "tiers_chapter",
    "time_bare",
]
