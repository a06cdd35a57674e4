"""A keeper that is ended by a mistake of its own says so where its log is, and ends by that signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from openshelf import Space
from openshelf.space import read_hosts
from openshelf.space.hosts import start_keeper


def _foreground(command: list[str], socket: Path) -> subprocess.Popen[str]:
    """The keeper as a child of this process, once it answers."""
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not start_keeper.answers(socket):
        assert started.poll() is None, started.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return started


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL])
def test_a_hosts_keeper_that_dies_names_the_signal_and_its_place(home: Path, url: str, number: signal.Signals) -> None:
    listed = read_hosts()
    started = _foreground(
        start_keeper.argv(home, listed, 0, detach=False), start_keeper.of_host(home, listed, 0).socket
    )
    started.send_signal(number)
    _, said = started.communicate(timeout=30)
    assert started.returncode == -number
    assert (
        f"keeper {listed.hosts[0]}, process {started.pid}, ends by {number.name}, which process {os.getpid()} sent"
        in said
    )
    assert len(re.findall(r"\[0x[0-9a-f]+\]", said)) > 3, said  # where it was


def test_a_keeper_of_a_flash_tier_that_dies_names_the_signal_in_its_log(home: Path, tmp_path: Path) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        pid = space.describe()["tiers"]["keeper"]
        os.kill(pid, signal.SIGSEGV)
        log, deadline = home / "shelf" / "keeper.log", time.monotonic() + 30
        while f"process {pid}, ends by SIGSEGV, which process {os.getpid()} sent" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert space.put("a", [1, 2, 3]).numpy().tolist() == [1, 2, 3]  # by the next one
    Space.remove("shelf")
