"""The tour: one chapter per capability."""

from openshelf.show.tour._courier import courier
from openshelf.show.tour._orders import Failed, Line, obey
from openshelf.show.tour._space import space_chapter
from openshelf.show.tour._two_hosts import Host, TwoHosts, in_namespaces, on_loopback

CHAPTERS = {"space": space_chapter}

__all__ = [
    "CHAPTERS",
    "Failed",
    "Host",
    "Line",
    "TwoHosts",
    "courier",
    "in_namespaces",
    "obey",
    "on_loopback",
    "space_chapter",
]
