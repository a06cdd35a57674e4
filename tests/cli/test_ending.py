"""How commands end: whole lines in a pipe, silence after Ctrl-C and when nobody reads on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.cli import main
from openshelf.show.tour.workers import calm, result_of
from openshelf.space import spaces

RUN = [sys.executable, "-c", "import sys; from openshelf.cli import main; sys.exit(main())"]
LONG = "model.layers.0." + "a_very_long_name_of_an_array_" * 8


def test_nothing_is_cut_off_in_a_pipe(home: Path) -> None:
    name = "a-space-with-a-name-of-sixty-four-characters".ljust(64, "x")
    with Space.create(name, dram="16MiB") as space:
        space.put(LONG, np.ones((2, 3, 4, 5)))
    narrow = os.environ | {"COLUMNS": "20"}
    for command, whole in ((["ls"], name), (["stat", name], LONG)):
        done = subprocess.run([*RUN, *command], capture_output=True, text=True, timeout=120, env=narrow)
        assert done.returncode == 0, done.stderr
        (line,) = (line for line in done.stdout.splitlines() if whole in line)
        assert "…" not in done.stdout
        assert "16 MiB" in line or "(2, 3, 4, 5)" in line


def test_ls_shows_room_and_memory(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Space.create("demo", dram="16MiB") as space:
        space.put("w", np.ones(1 << 20, np.uint8))
    (found,) = spaces()
    assert found["bytes"] == 16 << 20
    assert 1 << 20 < found["memory_bytes"] < 16 << 20
    assert main(["ls"]) == 0
    assert "16 MiB" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["--help", "ls", "metrics --json"])
def test_who_stops_reading_ends_a_command_in_silence(home: Path, command: str) -> None:
    Space.create("demo", dram="16MiB").close()
    line = f"{shlex.join([*RUN, *command.split()])} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0: all was written before


def test_output_that_cannot_be_written_is_an_error_and_none_is_none(home: Path) -> None:
    Space.create("demo", dram="16MiB").close()
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, "ls"], stdout=full, stderr=-1, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "openshelf: cannot write: No space left on device\n"
    for closed in (">&-", "<&- >&- 2>&-"):
        for command in ("ls", "create"):
            line = f"{shlex.join([*RUN, *command.split()])} {closed}"
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
            assert done.returncode == {"ls": 0, "create": 2}[command]
            assert "Traceback" not in done.stderr + done.stdout


def test_ctrl_c_ends_the_tour_and_its_processes_in_silence(home: Path) -> None:
    command = [*RUN, "tour", "--chapter", "space"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as tour:
        assert tour.stdout is not None
        tour.stdout.readline()
        while not [one for one in spaces() if one.get("members", 0) >= 2]:  # a worker is there
            assert tour.poll() is None
            time.sleep(0.01)
        os.killpg(tour.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, said = tour.communicate(timeout=120)
    assert (tour.returncode, said) == (130, "")
    assert spaces() == []


def _threads() -> str | None:
    return os.environ.get("OPENBLAS_NUM_THREADS")


def test_workers_of_the_tour_compute_with_one_thread_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert result_of(_threads) == "1"
    assert _threads() is None
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    with calm():
        assert _threads() == "3"
