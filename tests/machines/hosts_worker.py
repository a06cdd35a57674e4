"""In a guest: hosts_worker.py 1|2, of a space over two hosts; then it waits until the other one is lost."""

from __future__ import annotations

import sys
import time

import numpy as np

import openshelf as osf
from openshelf.errors import HostLost

PATIENCE_S = 600
WORDS = 1 << 16


def main() -> None:
    me = int(sys.argv[1])
    other = 3 - me
    space = osf.Space.open(f"openshelf://10.78.0.{me}:7400/shelf", contribute="32MiB")
    own = space.put(f"of {me}", np.arange(WORDS, dtype="i8") * me)
    counter = space.zeros("counter", 16, "i8") if me == 1 else None
    deadline = time.monotonic() + PATIENCE_S
    while space.get(f"of {other}") is None or space.get("counter") is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    theirs = space[f"of {other}"]
    gate = space.barrier("gate", parties=2)
    gate.wait(timeout=PATIENCE_S)
    assert (theirs.numpy() == np.arange(WORDS) * other).all()  # plain loads
    gate.wait(timeout=PATIENCE_S)
    theirs.numpy()[me] = -me  # a plain store to the other host's memory
    for _ in range(20):
        space["counter"].atomic(3).add(1)
    gate.wait(timeout=PATIENCE_S)
    assert own.numpy()[other] == -other
    if counter is not None:
        assert counter.atomic(3).load() == 40
    print("ready", flush=True)
    out = np.zeros(16, "i8")
    while True:  # until the other host is lost
        try:
            space.get(theirs.address, out).wait(timeout=PATIENCE_S)
            time.sleep(0.05)
        except HostLost as error:
            print(f"HostLost names {error.host}", flush=True)
            break
    assert own.numpy()[other] == -other
    assert own.numpy()[5] == 5 * me
    print("its own arrays are there", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
