"""One host or several: the same questions."""

from __future__ import annotations

from typing import cast

from openshelf import _core
from openshelf.space._cluster import Cluster
from openshelf.space._here import Here
from openshelf.space._native import Native
from openshelf.space._over import Over


def reach(native: Native) -> Here | Over:
    """What answers where a space's bytes are, and moves them."""
    return Over(native) if isinstance(native, Cluster) else Here(cast(_core.Core, native))
