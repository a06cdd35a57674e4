"""A process that forks for ever: what its dead children had is given to the next ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import Space
from tests.processes import Peer

SLOTS = 1024  # members of a space


def _fork(state: dict[str, Any], times: int) -> set[int]:
    codes = set()
    with Space.create("forks", "16MiB") as space:
        array = space.put("a", np.arange(3))
        for _ in range(times):
            child = os.fork()
            if not child:
                try:
                    os._exit(0 if space["a"].numpy()[1] == array.numpy()[1] else 2)
                finally:
                    os._exit(3)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


def test_more_children_than_slots_one_after_the_other(home: Path) -> None:
    with Peer("spawn") as peer:  # small: it is copied a thousand times
        assert peer.call(_fork, SLOTS + 20) == {0}
