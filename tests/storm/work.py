"""What a storm asks its processes to do."""

from __future__ import annotations

import faulthandler
import signal
import sys

from tests.processes import State
from tests.storm.guest import Guest
from tests.storm.plan import OVER_HOSTS
from tests.storm.worker import Worker


def worker_of(kind: str) -> type[Worker]:
    return Guest if kind in OVER_HOSTS else Worker


def work(state: State, kind: str, slot: int, seed: int, life: int, place: str) -> None:
    """Until the ledger says stop. A signal shows where it hangs."""
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    worker_of(kind)(kind, slot, place).run(seed, life)
