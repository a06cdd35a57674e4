"""Which Locality a space has."""

from __future__ import annotations

from typing import cast

from openshelf import _core
from openshelf.space.hosts.cluster import Cluster
from openshelf.space.locality.base import Locality
from openshelf.space.locality.flash import WithFlash
from openshelf.space.locality.hosts import SeveralHosts
from openshelf.space.locality.local import OneHost
from openshelf.space.native import Native


def locality_of(native: Native) -> Locality:
    """What answers where a space's bytes are, and moves them."""
    if isinstance(native, Cluster):
        return SeveralHosts(native)
    core = cast(_core.Core, native)
    tiers = core.tiers
    return OneHost(core) if tiers is None else WithFlash(core, tiers)
