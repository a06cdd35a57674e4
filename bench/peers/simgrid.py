"""SimGrid's ring all-reduce, compiled and run here, if its library is installed (Debian: libsimgrid-dev)."""

from __future__ import annotations

import resource
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")
BANDWIDTH, LATENCY_S = 50e9, 2.5e-7  # two links on every way


def ring_seconds(ranks: int, nbytes: int) -> tuple[float, float] | str:
    """CPU seconds of SimGrid for a ring all-reduce, and the time it finds; or why there are none."""
    with tempfile.TemporaryDirectory() as home:
        program = Path(home) / "ring"
        try:
            built = subprocess.run(
                ["g++", "-std=c++17", "-O2", str(SOURCE), "-o", str(program), "-lsimgrid"],
                capture_output=True,
                text=True,
            )
        except FileNotFoundError:
            return "no g++ to build it"
        if built.returncode:
            missing = "simgrid/s4u.hpp" in built.stderr or "cannot find -lsimgrid" in built.stderr
            return "not installed" if missing else f"does not build: {built.stderr.splitlines()[0]}"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Its default model shares the reverse link with acknowledgements and adds factors for TCP; ours does neither.
        settings = ("--log=root.threshold:error", "--cfg=network/crosstraffic:0", "--cfg=network/model:CM02")
        given = (str(ranks), str(nbytes), str(BANDWIDTH), str(LATENCY_S))
        command = [str(program), *settings, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, float(done.stdout)
