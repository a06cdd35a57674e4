"""Where userfaultfd gives nothing: what does not work is told once, with the true reason, and the rest works.

And where a process and its keeper would not agree on how pages are protected: refused."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import NotPermitted
from tests.processes import Peer, State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster

REASONS = {errno.EPERM: "userfaultfd is not permitted here", errno.ENOSYS: "the kernel has no userfaultfd"}
CALLS = {"x86_64": (323, 16), "aarch64": (282, 29)}  # userfaultfd, ioctl
OLD = tuple(int(number) for number in platform.release().split("-")[0].split(".")[:2]) < (6, 4)
_LOAD, _EQUAL, _RETURN, _ALLOW, _ERROR = 0x20, 0x15, 0x06, 0x7FFF_0000, 0x0005_0000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2

pytestmark = pytest.mark.skipif(platform.machine() not in CALLS, reason="no numbers of system calls for this processor")


def _forbid(state: State, error: int) -> None:
    """From now on neither the system call nor the device gives this process, and who it starts, a userfaultfd."""
    userfaultfd, ioctl = CALLS[platform.machine()]
    steps = [
        (_LOAD, 0, 0, 0),  # the number of the call
        (_EQUAL, 3, 0, userfaultfd),
        (_EQUAL, 0, 3, ioctl),
        (_LOAD, 0, 0, 24),  # its second argument
        (_EQUAL, 0, 1, 0xAA00),  # USERFAULTFD_IOC_NEW
        (_RETURN, 0, 0, _ERROR | error),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, ctypes.addressof(program), 0, 0)):
        if libc.prctl(*[ctypes.c_ulong(one) for one in arguments]):
            raise OSError(ctypes.get_errno(), "prctl")


def _told(make: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()  # type: ignore[operator]
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


def _make_flash(state: State, folder: str) -> list[str]:
    return _told(lambda: state.update(space=Space.create("shelf", "32MiB", flash=f"{folder}/flash:64MiB")))


def _use_flash(state: State) -> tuple[str, int]:
    array = state["space"].put("a", np.arange(1000))
    array.demote().wait()
    return state["space"].describe()["tiers"]["faults_how"], int(array.numpy().sum())


def _join(state: State, url: str) -> list[str]:
    return _told(lambda: worker.enter(state, url))


def _use_hosts(state: State, name: str) -> tuple[str, int]:
    array, out = state["space"][name], np.empty(worker.WORDS, "uint64")
    state["space"].get(array.address, out).wait()
    try:
        array.numpy()
    except NotPermitted as error:
        return str(error), int(out[5])
    raise AssertionError("a view without faults")


def _put(state: State) -> None:
    worker.make(state, "a", 1)
    worker.view(state, "a")[5] = 7


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as made:
        yield made


@pytest.mark.parametrize("error", REASONS)
def test_flash_without_faults_says_why_and_works(home: Path, tmp_path: Path, error: int) -> None:
    with Peer() as peer:
        peer.call(_forbid, error)
        (told,) = peer.call(_make_flash, str(tmp_path))
        assert REASONS[error] in told
        assert "hold their bytes in dram" in told
        assert peer.call(_use_flash) == ("none", 499_500)


def test_hosts_without_faults_say_why_and_have_explicit_calls(cluster: Cluster) -> None:
    first, second = cluster[0].peer(), cluster[1].peer()
    first.call(worker.enter, cluster[0].url())
    if first.call(_faults) == "none":
        pytest.skip("no userfaultfd here")
    first.call(_put)
    second.call(_forbid, errno.ENOSYS)
    (told,) = second.call(_join, cluster[1].url())
    assert REASONS[errno.ENOSYS] in told
    assert "space.get, space.put" in told
    why, word = second.call(_use_hosts, "a")
    assert REASONS[errno.ENOSYS] in why
    assert "not permitted" not in why
    assert "space.get" in why
    assert word == 7


def _faults(state: State) -> str:
    return str(state["space"].describe()["faults"])


@pytest.mark.skipif(OLD, reason="there is one way to protect pages on this kernel")
def test_process_that_protects_otherwise_than_its_keeper_is_refused(cluster: Cluster) -> None:
    cluster[0].peer().call(worker.enter, cluster[0].url())
    other = cluster[0].peer(OPENSHELF_FAULTS="6.1" if os.environ.get("OPENSHELF_FAULTS", "on") == "on" else "on")
    assert "different OPENSHELF_FAULTS" in other.call(_refused, cluster[0].url())


def _refused(state: State, url: str) -> str:
    try:
        worker.enter(state, url)
    except NotPermitted as error:
        return str(error)
    return f"not refused: {_faults(state)}"
