"""Starting a keeper where others end it, or are faster; and what is refused for processes that are gone."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, _core
from openshelf.errors import HostLost, NotPermitted, OpenshelfError
from openshelf.space.hosts import start_keeper
from openshelf.space.hosts.start_keeper import Keeper
from tests.conftest import alive, keeper_of
from tests.elf import sanitizer
from tests.processes import Peer, State

SCRIPT = """
import os, signal, socket, sys, time
tries, path, kills = sys.argv[1], sys.argv[2], int(sys.argv[3])
keeper = os.fork()
if keeper:
    os.write(1, b"%d" % keeper)
    os._exit(0)
os.setsid()
for number in range(3):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
with open(tries, "a") as log:
    log.write("x")
if os.path.getsize(tries) <= kills:
    os.kill(os.getpid(), signal.SIGKILL)
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(path)
listening.listen()
time.sleep(30)
"""


def _stand_in(home: Path, kills: int) -> Keeper:
    """A keeper that is killed before it answers, the first few times."""
    path = home / "stand-in"
    command = [sys.executable, "-I", "-S", "-c", SCRIPT, str(home / "tries"), f"{path}.sock", str(kills)]
    return Keeper("a stand-in", path, command)


def test_a_keeper_that_is_killed_before_it_answers_is_started_again(home: Path) -> None:
    keeper = _stand_in(home, 2)
    assert start_keeper.ensure(keeper) == keeper.socket
    assert (home / "tries").read_text() == "xxx"


def test_keepers_that_are_killed_again_and_again_are_given_up(home: Path) -> None:
    with pytest.raises(OpenshelfError, match=r"a stand-in did not start, 5 times: it was killed each time, or crashed"):
        start_keeper.ensure(_stand_in(home, 1000))
    assert (home / "tries").read_text() == "xxxxx"


KILLER = """
import os, signal, subprocess, sys
tries, kills, log, command = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
with open(tries, "a") as file:
    file.write("x")
keeper = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
if os.path.getsize(tries) <= kills:
    while os.path.getsize(tries) % 2 == 0 and not os.path.exists(log):  # half of them have begun their log
        pass
    os.kill(keeper, signal.SIGKILL)
print(keeper)
"""


def test_a_real_keeper_that_is_killed_while_it_starts_is_started_again(home: Path, tmp_path: Path) -> None:
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        space.put("a", np.arange(5))
    first = int((home / "shelf/keeper.lock").read_text())
    os.kill(first, signal.SIGKILL)
    found = start_keeper.of_space(home / "shelf")
    while start_keeper.answers(found.socket):  # its last thread may end after its first
        time.sleep(0.01)
    killer = [sys.executable, "-I", "-S", "-c", KILLER, str(tmp_path / "tries"), "4", str(found.log)]
    keeper = found._replace(command=[*killer, *found.command])
    assert start_keeper.answers(start_keeper.ensure(keeper))
    assert (tmp_path / "tries").read_text() == "xxxxx"
    with Space.open("shelf") as space:
        assert space["a"].numpy().tolist() == [0, 1, 2, 3, 4]


def test_a_keeper_that_ends_with_an_error_is_not_started_again(home: Path, tmp_path: Path) -> None:
    (home / "shelf").mkdir(mode=0o700)
    found = start_keeper.of_space(home / "shelf")
    killer = [sys.executable, "-I", "-S", "-c", KILLER, str(tmp_path / "tries"), "0", str(found.log)]
    with pytest.raises(OpenshelfError, match=r"did not start; .* says: .* the keeper ended: UnknownName: "):
        start_keeper.ensure(found._replace(command=[*killer, *found.command]))
    assert (tmp_path / "tries").read_text() == "x"


def test_keepers_that_end_while_a_process_attaches_are_followed_however_long_each_takes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_keeper, "_MEET_S", 0.0)  # as on a machine where one start takes longer
    keeper, tries = _stand_in(home, 0), home / "tries"

    def attach(path: str) -> str:
        if len(tries.read_text()) < 3:
            os.unlink(path)  # nobody answers there any more
            raise HostLost("the keeper ended")
        return path

    assert start_keeper.meet(keeper, attach) == str(keeper.socket)
    assert tries.read_text() == "xxx"


def _open(state: State, url: str) -> None:
    state["space"] = Space.open(url, contribute="16MiB")
    state["view"] = state["space"]["a"].numpy()


_STATUS, _CLOSE = 4, 5  # kinds of notes


def test_a_process_that_died_does_not_refuse_a_removal_though_its_end_was_not_heard(home: Path, url: str) -> None:
    peer = Peer()
    with Space.open(url, contribute="16MiB") as space:
        space.put("a", np.zeros(4))
        peer.call(_open, url)
        keeper = keeper_of(home)
    (directory,) = home.resolve().glob("demo@*")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(str(start_keeper.socket_path(home, url.split("/")[2])))
        asking.send(struct.pack("<QQ", _STATUS, 1))  # to be let in before it is stopped
        asking.recv(1000)
        os.kill(keeper, signal.SIGSTOP)
        head = struct.pack("<QQ", _CLOSE, _core.space_id(str(directory)))
        asking.send(head + str(directory).encode())  # heard before the end of the process
        peer.kill()
        os.kill(keeper, signal.SIGCONT)
        answer = asking.recv(1000)
    assert struct.unpack_from("<QQQ", answer)[2] == 1, answer[24:]


def test_a_space_is_not_removed_while_its_processes_wait_for_the_next_keeper(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Space.open(url, contribute="16MiB") as space:
        space.put("a", np.zeros(4))
        monkeypatch.setattr(start_keeper, "answers", lambda path: False)  # as between two keepers
        with pytest.raises(NotPermitted, match="processes of this host have the space open"):
            Space.remove(url)
        monkeypatch.undo()
        assert alive(keeper_of(home))
        assert space["a"].numpy().tolist() == [0, 0, 0, 0]


def test_a_keeper_runs_the_extension_of_who_started_it(home: Path, url: str) -> None:
    """Sanitized where that is: a keeper with another extension would be tested for nothing."""
    with Space.open(url, contribute="16MiB"):
        maps = Path(f"/proc/{keeper_of(home)}/maps").read_text()
    assert f" {_core.__file__}\n" in maps
    assert ("/libasan.so" in maps) == (sanitizer() == "address")


def test_a_keeper_that_ended_before_it_was_asked_is_followed_by_the_next(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure = start_keeper.ensure
    ended: list[Path] = []

    def ends(keeper: Keeper) -> Path:
        path = ensure(keeper)
        if not ended:
            ended.append(path)
            end = time.monotonic() + 60
            while path.exists() and time.monotonic() < end:  # nobody has come, so it does not linger
                time.sleep(0.005)
        return path

    monkeypatch.setattr(start_keeper, "ensure", ends)
    monkeypatch.setenv("OPENSHELF_LINGER", "0")
    with Space.create("deep", dram="32MiB", flash=f"{tmp_path / 'flash'}:64MiB") as space:
        space.put("w", np.ones(1000))
    assert ended
    Space.remove("deep")
