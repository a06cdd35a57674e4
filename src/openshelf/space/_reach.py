"""One host or several: the same questions."""

from __future__ import annotations

from typing import cast

from openshelf import _core
from openshelf.space._cluster import Cluster
from openshelf.space._here import Here
from openshelf.space._native import Native
from openshelf.space._over import Over
from openshelf.space._tiered import Tiered


def reach(native: Native) -> Here | Over | Tiered:
    """What answers where a space's bytes are, and moves them."""
    if isinstance(native, Cluster):
        return Over(native)
    core = cast(_core.Core, native)
    tiers = core.tiers
    return Here(core) if tiers is None else Tiered(core, tiers)
