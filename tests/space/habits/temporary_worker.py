"""Programs that use a temporary space and end in different ways. Each prints the name of the space first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from openshelf import Space


def child(space: Space, seconds: float) -> None:
    space["child"] = np.ones(3)
    time.sleep(seconds)


def main(how: str) -> None:
    space = Space.temporary("16MiB")
    space["a"] = np.zeros(3)
    print(space.name, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raises":
        raise KeyboardInterrupt
    elif how == "forked":  # the parent is gone first
        if os.fork():
            os._exit(0)
        time.sleep(0.2)
    elif how in ("spawn", "fork"):  # waited for at the end of the program
        context: Any = multiprocessing.get_context(how)
        context.Process(target=child, args=(space, 0.2)).start()
    elif how == "daemon":
        multiprocessing.get_context("fork").Process(target=child, args=(space, 600), daemon=True).start()
    elif how == "stays":
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
