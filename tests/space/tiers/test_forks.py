"""A process that is forked while its parent is looking for the next keeper."""

from __future__ import annotations

import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from tests.space.tiers import shelves
from tests.space.tiers.shelves import MIB, wait_until, words
from tests.storm.member import descriptors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads
ANSWER = struct.pack("<QQQ", 7, 0, 0)  # an AnswerNote: refused


def _sockets() -> set[str]:
    return {what for _, what in descriptors() if what.startswith("socket:")}


def test_a_child_has_no_part_in_a_connection_that_its_parent_is_just_making(home: Path, tmp_path: Path) -> None:
    with shelves.make(tmp_path) as space, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as slow:
        array = space.put("a", words(1, 1, MIB))
        before, path = shelves.keeper(space), home / "shelf" / "keeper.sock"
        path.unlink()
        slow.bind(str(path))
        slow.listen()
        slow.settimeout(60)
        known = _sockets()
        os.kill(before, signal.SIGKILL)
        parents = slow.accept()[0]
        parents.recv(4096)  # it waits for an answer, with a connection that is nobody's yet
        made = _sockets() - known - {os.readlink(f"/proc/self/fd/{parents.fileno()}")}
        assert len(made) == 1
        child = os.fork()
        if child == 0:
            os._exit(0 if not made & _sockets() else 1)
        childs = slow.accept()[0]
        childs.recv(4096)
        childs.send(ANSWER + b"closed:this is no keeper")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        path.unlink()
        childs.close()
        parents.close()
        slow.close()
        wait_until(lambda: shelves.keeper(space) != before)
        assert (array.numpy() == words(1, 1, MIB)).all()
