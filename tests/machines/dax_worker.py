"""In a guest: dax_worker.py work | create NAME | remove NAME, on its DAX device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

import openshelf as osf
from openshelf.errors import NameTaken, NoRoom, NotPermitted, OpenshelfError

DEVICE = "/dev/dax0.0"
ROOM = (128 - 2 - 2) << 20  # the kernel keeps a page, and the label is on one


def refused(kind: type[OpenshelfError], text: str, call: Callable[[], object]) -> None:
    said = ""
    try:
        call()
    except kind as error:
        said = str(error)
    assert text in said, said or "nothing was raised"


def basics() -> None:
    """What was in the device before is not what an array begins with."""
    space = osf.Space.create("shelf", ROOM, backing=DEVICE)
    assert space.describe()["file_system"] == "dax"
    assert space.describe()["page_size"] == 2 << 20
    space.put("noise", np.full(100 << 20, 7, "u1"))
    word = space.zeros("word", 16, "int32").atomic(3)
    assert word.add(1) == 0
    queue = space.channel("queue", capacity=8, message_bytes=64)
    queue.send(b"text")
    assert queue.receive(timeout=10) == b"text"
    if (child := os.fork()) == 0:
        space["noise"].numpy()[5] = 9
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert space["noise"].numpy()[5] == 9
    refused(NotPermitted, "the space cannot grow", lambda: space.grow("2MiB"))
    assert not any(space.check()[what] for what in ("leaked_blocks", "missing_blocks", "damaged"))
    del word, queue
    space.close()
    assert osf.Space.open("shelf", "r")["noise"].numpy()[5] == 9
    osf.Space.remove("shelf")
    refused(NoRoom, f"has room for {ROOM >> 20} MiB", lambda: osf.Space.create("shelf", ROOM + 1, backing=DEVICE))
    with osf.Space.create("shelf", ROOM, backing=DEVICE) as fresh:
        assert not fresh.zeros("clear", 100 << 20, "u1").numpy().any()


def hold(ready: multiprocessing.synchronize.Event) -> None:
    view = osf.Space.open("shelf")["clear"].numpy()
    view[:] = 1
    ready.set()
    time.sleep(1000)


def deaths() -> None:
    """The device stays the space's when all its processes were killed, and is nobody's while somebody has a view."""
    ready = multiprocessing.Event()
    viewer = multiprocessing.Process(target=hold, args=(ready,))
    viewer.start()
    assert ready.wait(200)
    refused(NameTaken, "remove that space first", lambda: osf.Space.create("other", "8MiB", backing=DEVICE))
    os.kill(viewer.pid or 0, signal.SIGKILL)
    viewer.join()
    refused(NameTaken, "remove that space first", lambda: osf.Space.create("other", "8MiB", backing=DEVICE))
    with osf.Space.open("shelf") as space:
        assert space["clear"].numpy().all()
        space.put("more", np.ones(5 << 20, "u1"))
    ready.clear()
    viewer = multiprocessing.Process(target=hold, args=(ready,))
    viewer.start()
    assert ready.wait(200)
    osf.Space.remove("shelf")
    refused(NameTaken, "still map the device", lambda: osf.Space.create("other", "8MiB", backing=DEVICE))
    os.kill(viewer.pid or 0, signal.SIGKILL)
    viewer.join()
    osf.Space.create("other", "8MiB", backing=DEVICE).close()
    osf.Space.remove("other")


def killed_makers() -> None:
    """Whatever moment a maker is killed at: the next one gets the device, unless the space was made."""
    for delay_ms in range(0, 60, 4):
        if (child := os.fork()) == 0:
            osf.Space.create("shelf", "8MiB", backing=DEVICE)
            os._exit(0)
        time.sleep(delay_ms / 1000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        space = osf.Space.create("shelf", "8MiB", backing=DEVICE, exist_ok=True)
        space.put("a", np.ones(1 << 20, "u1"))
        space.close()
        osf.Space.remove("shelf")


def main() -> None:
    if sys.argv[1] == "work":
        multiprocessing.set_start_method("spawn")
        basics()
        deaths()
        killed_makers()
        print("all is well")
        return
    try:
        if sys.argv[1] == "create":
            osf.Space.create(sys.argv[2], "16MiB", backing=DEVICE).close()
            print("made")
        else:
            osf.Space.remove(sys.argv[2])
            print("removed")
    except OpenshelfError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
