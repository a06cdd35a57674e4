"""`openshelf keeper`: makes this host's part of a space, takes over from another keeper, says how to be a service."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import keeper_of
from tests.processes import PATIENCE, Peer, State

from openshelf import Space
from openshelf.space.hosts.start_keeper import answers, socket_path

_COMMAND = [sys.executable, "-c", "import sys; from openshelf.cli import main; sys.exit(main())", "keeper"]


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=60
    )


@contextmanager
def _keeper(home: Path, url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    host = url.split("/")[2]
    with subprocess.Popen([*_COMMAND, "--host", host, *arguments], stdout=subprocess.PIPE, text=True) as keeper:
        try:
            deadline = time.monotonic() + 60 * PATIENCE
            while not answers(socket_path(home, host)) or keeper_of(home) != keeper.pid:
                assert keeper.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield keeper
        finally:
            keeper.send_signal(signal.SIGTERM)
            assert keeper.wait(30) == 0


def test_a_service_makes_its_hosts_part_of_a_space_and_lets_it_grow(home: Path, url: str) -> None:
    with _keeper(home, url, "--space", "demo", "--contribute", "16MiB"), Space.open(url) as space:
        assert space.describe()["bytes"] == 16 << 20
        space.put("a", np.arange(3))
    with _keeper(home, url, "--space", "demo", "--contribute", "32MiB"), Space.open(url) as space:
        assert space.describe()["bytes"] == 32 << 20
        assert space["a"].numpy().tolist() == [0, 1, 2]
    Space.remove(url)


def _open(state: State, url: str) -> None:
    state["space"] = Space.open(url, contribute="16MiB")
    state["view"] = state["space"].put("a", np.zeros(4)).numpy()


def _add(state: State) -> float:
    state["view"][0] += 1
    return float(state["space"]["a"].numpy()[0])


def test_a_service_takes_over_and_the_next_one_takes_its_place(home: Path, url: str) -> None:
    with Peer() as peer:
        peer.call(_open, url)
        on_demand = keeper_of(home)
        for count in (1, 2, 3):
            with _keeper(home, url, "--space", "demo") as keeper:
                assert keeper.pid != on_demand
                assert peer.call(_add) == count
        assert peer.call(_add) == 4  # by one that it started itself, if it needs one


def test_what_does_not_go_together_is_refused(url: str) -> None:
    host = url.split("/")[2]
    assert "--contribute goes with --space" in _run("--host", host, "--contribute", "1MiB").stderr
    assert "is not a name for a space" in _run("--host", host, "--space", "a b").stderr
    job = Path(os.environ["OPENSHELF_HOSTS"]).with_name("job.yaml")
    job.write_text(f"key: {'ab' * 32}\nhosts: job\n")
    job.chmod(0o600)
    slurm = {"SLURM_JOB_NODELIST": "n1", "SLURM_NODEID": "0"}
    assert "a job ends, a service stays" in _run("--unit", "--hosts", str(job), **slurm).stderr


@pytest.mark.parametrize("place", ["plain", 'with space, 100% "quoted" $HOME'])
def test_the_unit_is_one_that_systemd_takes(url: str, tmp_path: Path, place: str) -> None:
    file = tmp_path / place / "hosts.yaml"
    file.parent.mkdir()
    shutil.copy(os.environ["OPENSHELF_HOSTS"], file)
    done = _run("--unit", "--hosts", str(file), "--host", url.split("/")[2], "--space", "demo", "--contribute", "1GiB")
    assert done.returncode == 0, done.stderr
    assert f"Environment=OPENSHELF_DIR={os.environ['OPENSHELF_DIR']}\n" in done.stdout
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze here")
    unit = tmp_path / "openshelf-keeper.service"
    unit.write_text(done.stdout)
    checked = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    unit.write_text(done.stdout.replace("Restart=always", "Restart=perhaps"))
    assert subprocess.run([verify, "verify", str(unit)], capture_output=True, timeout=60).stderr  # it does look
