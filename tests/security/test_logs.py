"""A keeper's log stays small, whoever makes it complain."""

from __future__ import annotations

import os
import resource
import signal
import socket
from pathlib import Path

from openshelf import Space
from openshelf.space.hosts import start_keeper
from tests.space.tiers.shelves import keeper, wait_until


def test_a_log_that_is_full_is_cut_and_its_end_is_kept(home: Path, tmp_path: Path) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        log, pid = home / "shelf" / "keeper.log", keeper(space)
        with log.open("a") as file:
            for number in range(5 << 14):
                file.write(f"line {number} that is about as long as lines of a log usually are, some 80 bytes\n")
        assert log.stat().st_size > 4 << 20
        limit = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        sock = start_keeper.of_space(home / "shelf").socket
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process:
            process.connect(str(sock))
            process.recv(1 << 16)
        wait_until(lambda: log.stat().st_size < 2 << 20)
        text = log.read_text()
        assert text.startswith("(earlier lines were dropped)\n")
        assert f"line {(5 << 14) - 1} " in text
        assert "open files (ulimit -n)" in text.splitlines()[-1]
        os.kill(pid, signal.SIGKILL)
