"""Opening a space by its name while others remove it and make it anew, elsewhere and of another size."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from openshelf import Space
from openshelf.errors import AddressOccupied, Closed, UnknownName
from tests.processes import Peer, stop_process

LIVES = 250
GIB = 1 << 30


def _make(life: int) -> None:
    """The addresses and what lies where in the metadata differ from life to life."""
    base, reserve = 0x3000_0000_0000 + life % 7 * 256 * GIB, (32 << life % 3) * GIB
    with Space.create("again", "1MiB", base=base, reserve=reserve) as space:
        space.put("life", np.full(2, life))


def _open_again_and_again(state: dict[str, Any], place: Path) -> None:
    while not (place / "enough").exists():
        try:
            with Space.open("again") as space:
                array = space.get("life")
                assert array is None or 0 <= int(array.numpy()[0]) < LIVES
                (place / "begun").touch()
        except (UnknownName, Closed, AddressOccupied):
            continue  # it was just removed, or is not whole yet


def test_what_is_opened_is_one_life_of_the_space(home: Path, peer: Peer) -> None:
    """A process that is stopped anywhere in between finds another space behind the same name when it goes on."""
    rng = random.Random(0)
    _make(0)
    peer.start(_open_again_and_again, home)
    while not (home / "begun").exists():
        time.sleep(0.01)
    for life in range(1, LIVES):
        stop_process(peer.process.pid)
        Space.remove("again")
        _make(life)
        os.kill(peer.process.pid, signal.SIGCONT)
        time.sleep(rng.random() / 500)
    (home / "enough").touch()
    peer.finish()
