"""Every test has its own directory of spaces, so that tests run in parallel and leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Teams of threads that spin while they wait are ruinous where two test processes share two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # those that need more say so
# Under nohup, or in the background of a script, Ctrl-C is ignored, and so it would be in all processes of the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest

from openshelf import Space
from openshelf.space import new_hosts_file
from tests.processes import Peer
from tests.space.hosts.harness.cluster import free_ports
from tests.space.hosts.harness.etcd import Servers, program


def collect() -> None:
    """Ends views that a failed test left in reference cycles.

    What is alive afterwards is not looked at again: modules have half a million objects, and looking at all of them
    after every test took a third of the time of all tests.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    collect()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private OPENSHELF_DIR in shared memory."""
    path = Path(tempfile.mkdtemp(prefix="openshelf-test-", dir="/dev/shm"))
    path.chmod(0o700)
    monkeypatch.setenv("OPENSHELF_DIR", str(path))
    yield path
    collect()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def space(home: Path) -> Iterator[Space]:
    """An open space of 64 MiB named 'shelf', whole at the end of the test."""
    with Space.create("shelf", "64MiB") as made:
        yield made


@pytest.fixture
def peer(home: Path) -> Iterator[Peer]:
    """One other process."""
    with Peer() as process:
        yield process


def free_port() -> int:
    return free_ports(1)[0]


def keeper_of(home: Path) -> int:
    """The process number of the keeper that was started last."""
    (lock,) = home.glob("keeper@*.lock")
    return int(lock.read_text())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_threads(pid: int) -> bool:
    """Whether any thread of a process runs: those of a killed one end one after the other, the first not last."""
    try:
        return alive(pid) or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


@pytest.fixture
def url(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a space 'demo' with this host and one that is never there."""
    host = f"127.0.0.1:{free_port()}"
    made = new_hosts_file(home / "hosts.yaml", [host, f"127.0.0.2:{free_port()}"])
    monkeypatch.setenv("OPENSHELF_HOSTS", str(made.path))
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    yield f"openshelf://{host}/demo"
    for lock in home.glob("keeper@*.lock"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(lock.read_text()), signal.SIGKILL)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


@pytest.fixture(scope="session")
def etcd_servers() -> Iterator[Servers]:
    """A real etcd of three servers on loopback, for the test run."""
    path, why_not = program()
    if not path:
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-etcd-") as place:
        with Servers(free_ports(6), Path(place)) as servers:
            servers.await_majority()
            yield servers
