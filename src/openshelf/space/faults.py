"""What page faults give here: the choice of the environment, and one word to the user where there are none."""

from __future__ import annotations

import os
import warnings

from openshelf import _core
from openshelf.errors import BadInput

VARIABLE = "OPENSHELF_FAULTS"
# As if the kernel were that old: before CONTINUE_MODE_WP (6.4), before POISON (6.6). The native core reads it, too.
OLDER = ("6.1", "6.4")


def wanted() -> bool:
    """False: none are to be used in spaces with a flash tier."""
    choice = os.environ.get(VARIABLE) or "on"
    if choice not in ("on", "off", *OLDER):
        raise BadInput(f"{VARIABLE}={choice!r}: expected 'on', 'off', " + " or ".join(map(repr, OLDER)))
    return choice != "off"


def tell_none(what: str) -> None:
    """`what` does not work, and what does. Python shows it once for each caller."""
    warnings.warn(f"{_core.why_no_faults()}: {what}", RuntimeWarning, stacklevel=2)
