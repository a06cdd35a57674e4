"""In a guest: power_worker.py write | check FLUSHED, of a durable space on its disk.

Every version is four arrays of one number, whose sizes depend on it. What was flushed is said over the serial line.
"""

from __future__ import annotations

import sys

import numpy as np

import openshelf as osf


def size_of(version: int, number: int) -> int:
    return 40_000 * (1 + (version + number) % 3)


def write(space: osf.Space) -> None:
    version = int(space["a0"].numpy()[0]) if "a0" in space else 0
    while True:
        version += 1
        for number in range(4):
            space.put(f"a{number}", np.full(size_of(version, number), version, "i8"))
        space.flush().wait()
        with open("/dev/ttyS0", "w") as line:
            line.write(f"flushed {version}\n")


def check(space: osf.Space, flushed: int) -> None:
    versions = set()
    for number in range(4):
        array = space[f"a{number}"].numpy()
        (version,) = np.unique(array).tolist()
        assert array.size == size_of(version, number), (number, version, array.size)
        versions.add(version)
    assert len(versions) == 1, versions
    assert versions.pop() >= flushed
    assert not any(space.check()[what] for what in ("leaked_blocks", "missing_blocks", "damaged"))
    print("whole")


def main() -> None:
    space = osf.Space.create("shelf", "32MiB", flash="/mnt/shelf:96MiB", durable=True, exist_ok=True)
    if sys.argv[1] == "write":
        write(space)
    check(space, int(sys.argv[2]))


if __name__ == "__main__":
    main()
