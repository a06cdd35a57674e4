"""Members in different PID namespaces, as in two containers: equal pids, invisible to one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from tests.processes import WATCHDOG
from tests.space import shelf

SCRIPT = """
import os, sys
import numpy as np
from openshelf import Space

def say(*words):
    print(*words, flush=True)

say("pid", os.getpid())
space = view = lock = None
for line in sys.stdin:
    verb, *rest = line.split()
    if verb == "open":
        space = Space.open(rest[0])
        say("opened", len(space))
    elif verb == "hold":
        view = space[rest[0]].numpy()
        say("held", int(view.sum()))
    elif verb == "sum":
        say("sum", int(view.sum()))
    elif verb == "put":
        say("put", space.put(rest[0], np.full(int(rest[1]), int(rest[2]), np.uint8)).address)
    elif verb == "lock":
        lock = space.lock(rest[0])
        say("lock", lock.acquire(float(rest[1])), lock.previous_died)
    elif verb == "release":
        lock.release()
        say("released")
    elif verb == "check":
        say("check", sum(count for kind, count in space.check().items() if kind not in ("arrays", "bytes")))
    elif verb == "members":
        say("members", sum(member["alive"] for member in space.describe()["members"]))
"""


class Namespaced:
    """A process that is the first of a PID namespace of its own."""

    def __init__(self, space: str) -> None:
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", SCRIPT]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.inner = int(self.stdout.readline().split()[1])
        self.ask("open", space)

    def ask(self, *words: object) -> str:
        print(*words, file=self.stdin, flush=True)
        answer = self.stdout.readline().strip()
        assert answer, f"the process in the namespace ended: {self.process.poll()}"
        return answer

    def kill(self) -> None:
        """Kills the member itself, not the one who waits for it outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        self.process.wait(WATCHDOG)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.stdin.close()
            self.process.wait(WATCHDOG)


@pytest.fixture
def pair(space: Space, home: Path) -> Iterator[tuple[Namespaced, Namespaced]]:
    probe = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False, capture_output=True, text=True
    )
    if probe.returncode:
        pytest.skip(f"no PID namespace can be made here: {probe.stderr.strip()}")
    space.put("a", np.ones(1 << 20, np.uint8))
    both = Namespaced(str(home / "shelf")), Namespaced(str(home / "shelf"))
    assert both[0].inner == both[1].inner  # equal pids: a pid says nothing about who lives
    yield both
    for one in both:
        one.stop()


def test_live_member_of_another_namespace_is_not_reaped(space: Space, pair: tuple[Namespaced, Namespaced]) -> None:
    one, two = pair
    assert one.ask("hold", "a") == f"held {1 << 20}"
    space.delete("a")
    for number in range(20):
        two.ask("put", f"two{number % 3}", 1 << 20, 7)
        space.put(f"three{number % 3}", np.full(1 << 20, 9, np.uint8))
    assert one.ask("sum") == f"sum {1 << 20}"
    assert one.ask("members") == two.ask("members") == "members 3"
    assert len([member for member in space.describe()["members"] if member["alive"]]) == 3
    assert two.ask("check") == one.ask("check") == "check 0"


def test_killed_member_of_another_namespace_is_reaped(space: Space, pair: tuple[Namespaced, Namespaced]) -> None:
    one, two = pair
    one.ask("hold", "a")
    space.delete("a")
    assert space.check()["bytes"] == 1 << 20
    one.kill()
    assert two.ask("members") == "members 2"
    assert space.check()["bytes"] == 0
    assert shelf.problems(space) == shelf.SOUND


def test_lock_is_recovered_only_after_its_holder_died(space: Space, pair: tuple[Namespaced, Namespaced]) -> None:
    one, two = pair
    lock = space.lock("l")
    assert one.ask("lock", "l", 60) == "lock True False"
    assert two.ask("lock", "l", 0.3) == "lock False False"  # looks at the holder several times meanwhile
    assert not lock.acquire(0.3)
    one.kill()
    assert two.ask("lock", "l", 60) == "lock True True"
    assert not lock.acquire(0.1)
    assert two.ask("release") == "released"
    assert lock.acquire(60)
    assert not lock.previous_died


def test_death_in_one_namespace_frees_no_lock_of_its_twin(space: Space, pair: tuple[Namespaced, Namespaced]) -> None:
    one, two = pair
    assert two.ask("lock", "l", 60) == "lock True False"
    one.kill()
    space.describe()  # reaps the dead one, whose pid the holder has too
    assert not space.lock("l").acquire(0.3)
    assert two.ask("release") == "released"
    assert space.lock("l").acquire(60)
