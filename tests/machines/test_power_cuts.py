"""The power of a guest is cut at a write of its disk, again and again: a durable space has all that was flushed."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.guest import PATIENCE, Guest, place
from tests.machines.lossy_disk import LossyDisk

_CUTS = 4


@pytest.fixture
def disk() -> Iterator[LossyDisk]:
    """256 MiB with an ext4."""
    image = Path(f"/dev/shm/openshelf-disk-{os.getpid()}")
    with image.open("wb") as file:
        file.truncate(256 << 20)
    settled = "lazy_itable_init=0,lazy_journal_init=0"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-E", settled, str(image)], check=True)
    made = LossyDisk(image, place() / f"run/disk-{os.getpid()}.nbd")
    yield made
    made.close()
    image.unlink()


def _acknowledged(guest: Guest) -> list[int]:
    return [int(number) for number in re.findall(r"flushed (\d+)", guest.serial())]


def test_what_was_flushed_survives_power_cuts_at_writes(disk: LossyDisk) -> None:
    chance = random.Random(int(os.environ.get("OPENSHELF_SEED") or 1))
    drive = [
        "-blockdev", f"driver=nbd,node-name=d0,server.type=unix,server.path={disk.path}",
        "-device", "virtio-blk-pci,drive=d0,write-cache=on",
    ]  # fmt: skip
    flushed = volatile = 0
    for cut in range(_CUTS + 1):
        with Guest("power", "6.12", devices=drive) as guest:
            guest.run("modprobe virtio_blk; modprobe ext4; mount -t ext4 /dev/vda /mnt")
            if cut:
                out = guest.run(guest.python("power_worker.py", "check", str(flushed)))
                assert out.endswith("whole\n"), out
            if cut == _CUTS:
                break
            guest.begin(f"{guest.python('power_worker.py', 'write')} > /root/out; cat /root/out > /dev/ttyS0")
            deadline = time.monotonic() + 60 * PATIENCE
            while not _acknowledged(guest):
                assert time.monotonic() < deadline, guest.said()
                time.sleep(0.1)
            disk.cut_at(chance.randrange(1, 60))
            assert disk.dead.wait(60 * PATIENCE), guest.said()
            guest.cut()
            flushed = max([flushed, *_acknowledged(guest)])
        volatile += disk.cut(chance)
    assert volatile > 0  # else nothing was tried
