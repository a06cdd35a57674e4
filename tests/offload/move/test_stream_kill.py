"""A run that is killed in the middle leaves no file and no memory behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PACKING = """
import os, sys, time
import numpy as np
from openshelf.offload.weights import pack

def slow(address, keep):
    def fill(view, at):
        if at:
            print("packing", flush=True)
            time.sleep(60)
    return fill

pack._from_memory = slow
pack.pack_state({"w": np.ones(32 << 20, np.uint8)}, folder=sys.argv[1], name="w")
"""

RUNNING = """
import sys, time
import numpy as np
from openshelf._core import DeviceArena
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover
from openshelf.offload.weights.pack import pack_state

packed = pack_state({"w": np.ones(8 << 20, np.uint8)}, folder=sys.argv[1])
homes = Homes(sys.argv[1], dram=8 << 20)
homes.packed(0, packed, "w")
homes.room(0, "w", 8 << 20)
homes.room(1, "moments", 4 << 20, "dram")
homes.put(1, None)
mover = Mover(homes, DeviceArena(16 << 20))
for turn in range(10**9):
    mover.begin_read(0, 0)
    mover.begin_read(1, 8 << 20)
    mover.wait(0)
    mover.begin_write(0, 0)
    mover.wait(1)
    if turn == 3:
        print("running", flush=True)
"""


@pytest.mark.parametrize("program", [PACKING, RUNNING])
def test_nothing_is_left_of_a_killed_run(tmp_path: Path, program: str) -> None:
    shm = set(os.listdir("/dev/shm"))
    folder = tmp_path / "flash"
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() in ("packing", "running")
        assert list(folder.iterdir()) == []  # nor is there one to be left
        open_files = [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert any(target.startswith(str(folder)) and target.endswith("(deleted)") for target in open_files)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert list(folder.iterdir()) == []
    assert not {name for name in os.listdir("/dev/shm") if name not in shm and str(process.pid) in name}
