"""The tour: one chapter per capability."""

from openshelf.show.tour._bare import serve_bare, time_bare
from openshelf.show.tour._courier import courier
from openshelf.show.tour._fabric import fabric_chapter
from openshelf.show.tour._hosts import hosts_chapter
from openshelf.show.tour._kv import kv_chapter
from openshelf.show.tour._offload import offload_chapter
from openshelf.show.tour._orders import Failed, Line, obey
from openshelf.show.tour._space import space_chapter
from openshelf.show.tour._tiers import tiers_chapter
from openshelf.show.tour._two_hosts import Host, TwoHosts, in_namespaces, on_loopback

CHAPTERS = {
    "space": space_chapter,
    "hosts": hosts_chapter,
    "kv": kv_chapter,
    "tiers": tiers_chapter,
    "offload": offload_chapter,
    "fabric": fabric_chapter,
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
    "tiers_chapter",
    "time_bare",
]
