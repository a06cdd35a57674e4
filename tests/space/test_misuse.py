"""What users get wrong: each mistake costs nothing and says what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openshelf import Barrier, Space, _core
from openshelf.errors import (
    AddressOccupied,
    BadInput,
    BrokenBarrier,
    Closed,
    Corrupt,
    Mismatch,
    NameTaken,
    NotPermitted,
    OpenshelfError,
    UnknownName,
)
from tests.elf import sanitizer


def test_remove_never_touches_what_is_no_space(home: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "precious").write_text("kept")
    with pytest.raises((UnknownName, Corrupt)):
        Space.remove(str(tmp_path))
    assert (tmp_path / "precious").read_text() == "kept"
    Space.create("demo", "16MiB").close()
    (home / "demo" / "notes").write_text("a user's")
    with pytest.raises(NotPermitted, match="not the space's"):
        Space.remove("demo")
    assert (home / "demo" / "notes").read_text() == "a user's"
    Space.open("demo").close()  # nothing was taken away
    (home / ".gone-1-old").mkdir()
    (home / ".gone-1-old" / "notes").write_text("a user's")
    Space.create("another", "16MiB").close()  # what cannot be cleared does not stand in the way
    assert (home / ".gone-1-old" / "notes").exists()


def test_backing_is_a_new_file_and_nothing_else(home: Path, tmp_path: Path) -> None:
    mode = stat.S_IMODE(os.stat("/dev/null").st_mode)
    for path in ("/dev/zero", "/dev/null"):
        with pytest.raises(NameTaken, match="exists already"):
            Space.create("demo", "16MiB", backing=path)
    assert stat.S_IMODE(os.stat("/dev/null").st_mode) == mode
    (tmp_path / "mine").touch()
    with pytest.raises(NameTaken):
        Space.create("demo", "16MiB", backing=tmp_path / "mine")
    assert (tmp_path / "mine").exists()
    with pytest.raises(BadInput, match="backing is a path"):
        Space.create("demo", "16MiB", backing="a\0b")
    with pytest.raises(BadInput, match="there is no directory"):
        Space.create("demo", "16MiB", backing=tmp_path / "no" / "file")
    with pytest.raises(OpenshelfError):
        Space.create("demo", "1PiB", backing=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    Space.create("demo", "16MiB", backing=tmp_path / "new").close()
    assert (tmp_path / "new").exists()
    Space.remove("demo")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in home.iterdir()] == [".lock"]


def test_base_is_checked(home: Path) -> None:
    with Space.create("one", "16MiB") as one:
        taken = one.describe()["base"]
    for base in (0, 4096, 12345, -1, 1 << 64, (1 << 47) - 4096):
        with pytest.raises(BadInput, match="is no place"):
            Space.create("two", "16MiB", base=base)
    for wrong in (1.5, "0x2000"):
        with pytest.raises(Mismatch, match="must be an integer"):
            Space.create("two", "16MiB", base=wrong)  # type: ignore[arg-type]
    with pytest.raises(AddressOccupied, match="another space of yours"):
        Space.create("two", "16MiB", base=taken)
    with pytest.raises(BadInput, match="at most 2 TiB"):
        Space.create("two", "16MiB", reserve="8TiB")
    assert sorted(path.name for path in home.iterdir()) == [".lock", "one"]


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["list"], "", "\x01hidden", "\udc80", 1.5])
def test_wrong_names_are_named(space: Space, name: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: space[name],
        lambda: space.folder("f").get(name),
        lambda: name in space,
        lambda: space.delete(name),
        lambda: space.rename(name, "b"),
        lambda: space.rename("a", name),
        lambda: space.folder(name),
        lambda: space.lock(name),
    ]
    if name is not None:
        calls += [lambda: space.new(name, 3), lambda: space.folder("f").put(name, np.zeros(3))]
    if not isinstance(name, int):  # a space takes it for an address
        calls.append(lambda: space.get(name, np.zeros(3)))
    space.put("a", np.zeros(3))
    for call in calls:
        with pytest.raises((BadInput, Mismatch), match="name"):
            call()


@pytest.mark.parametrize("shape", ["34", b"ab", None, (None,), (2.7,), float("nan"), (0, 2**70), (1,) * 65, (-1,)])
def test_wrong_shapes_are_named(space: Space, shape: Any) -> None:
    with pytest.raises(Mismatch):
        space.new("a", shape)
    with pytest.raises(Mismatch):
        space.at(space.put(None, np.zeros(3)).address, shape, "u1")


@pytest.mark.parametrize("dtype", [None, "f4,,", "(3,)f4", [("a", "i4"), ("a", "i4")], object, "nonsense", "\udc80"])
def test_wrong_dtypes_are_named(space: Space, dtype: Any) -> None:
    with pytest.raises(Mismatch):
        space.new("a", 3, dtype)


def test_wrong_numbers_are_named(space: Space) -> None:
    array = space.zeros("a", 4, "int32")
    calls: list[Callable[[], Any]] = [
        lambda: array.atomic(1.5),  # type: ignore[arg-type]
        lambda: array.atomic().add(1.5),  # type: ignore[arg-type]
        lambda: array.atomic().wait(0, "x"),  # type: ignore[arg-type]
        lambda: array[1.5],
        lambda: space.at(1.5, 3, "u1"),  # type: ignore[arg-type]
        lambda: space.where(1.5),  # type: ignore[arg-type]
        lambda: space.barrier("b", 1.5),  # type: ignore[arg-type]
        lambda: space.channel("c", 1.5),  # type: ignore[arg-type]
        lambda: array.numpy("bfloat16"),
    ]
    for call in calls:
        with pytest.raises(Mismatch):
            call()
    assert array.atomic().wake(2**40) == 0
    assert not array.atomic().wait(0, timeout=-1)


def test_an_array_is_a_handle_that_numpy_understands(space: Space) -> None:
    array = space.put("a", np.arange(6).reshape(2, 3))
    assert np.asarray(array).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert space.put("b", array).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert space.put("row", array[1]).numpy().tolist() == [3, 4, 5]
    with pytest.raises(Mismatch, match="mask"):
        space.put("c", np.ma.masked_array([1, 2], [True, False]))
    with pytest.raises(Mismatch, match="cannot be put"):
        space.put("c", space)


def test_tensors_are_stored_as_they_look(space: Space) -> None:
    tensor = torch.tensor([1 + 2j])
    assert space.put("conjugate", tensor.conj()).torch().tolist() == [1 - 2j]
    assert space.put("negative", tensor.conj().imag).torch().tolist() == [-2.0]
    for wrong in (torch.zeros(3).to_sparse(), torch.zeros(3, device="meta")):
        with pytest.raises(Mismatch, match="no plain bytes"):
            space.put("c", wrong)


def test_publishing_what_cannot_be_published(space: Space) -> None:
    unnamed = space.new(None, 3)
    with pytest.raises(BadInput, match=r"publish\(name\)"):
        unnamed.publish()
    with pytest.raises(BadInput, match="replaced"):
        unnamed.publish("a", replace=True)
    draft = space.new("b", 3)
    with pytest.raises(BadInput, match="has the name 'b'"):
        draft.publish("c")
    with pytest.raises(BadInput, match="publish it first"):
        space.channel("c").send(draft)
    draft.publish()
    with pytest.raises(BadInput, match="published already"):
        draft.publish()
    assert unnamed.publish("named").name == "named"


def test_channels_take_bytes_text_and_arrays_of_their_space(space: Space) -> None:
    channel = space.channel("c")
    for wrong in (5, [1, 2], np.zeros(3), None):
        with pytest.raises(Mismatch, match="a message is"):
            channel.send(wrong)  # type: ignore[arg-type]
    with Space.create("other", "16MiB") as other:
        with pytest.raises(BadInput, match="'other'"):
            channel.send(other.put(None, np.zeros(3)))
    unnamed = space.put(None, np.arange(3))
    assert channel.send(unnamed)
    assert unnamed.name is None
    with pytest.raises(BadInput, match="under way"):
        channel.send(unnamed)
    received = channel.receive(1)
    assert channel.send(unnamed)
    assert received is not None
    assert channel.receive(1) is not None


def test_a_channel_whose_deleter_was_killed_is_made_anew(space: Space) -> None:
    child = os.fork()
    if child == 0:
        pin = space._native.find("c") if "c" in space else space.channel("c")._pin
        assert pin is not None
        _core.channel_discard(pin)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    channel = space.channel("c")
    assert channel.send(b"works")
    assert channel.receive(1) == b"works"


def test_nobody_waits_in_a_removed_space(space: Space) -> None:
    lock, channel, barrier = space.lock("l"), space.channel("c"), space.barrier("b", 2)
    timer = threading.Timer(0.2, Space.remove, (space.name,))
    timer.start()
    with pytest.raises(Closed, match="was removed"):
        channel.receive()
    timer.join()
    for call in (lock.acquire, lambda: channel.send(b"x"), barrier.wait, lambda: space.where(0)):
        with pytest.raises(Closed, match="was removed"):
            call()


def test_a_barrier_that_opens_while_ctrl_c_is_pressed(space: Space) -> None:
    barrier: Barrier = space.barrier("b", 2)

    def come() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        with contextlib.suppress(BrokenBarrier):
            barrier.wait(2)

    thread = threading.Thread(target=come)
    thread.start()

    def wait() -> None:
        barrier.wait(10)
        time.sleep(1)  # the signal may be heard after the barrier opened

    with pytest.raises(KeyboardInterrupt):
        wait()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.skipif(sanitizer() == "address", reason="ASan's allocator may be locked by another thread in the child")
def test_a_fork_among_opening_threads_leaves_a_child_that_can_open(home: Path) -> None:
    Space.create("demo", "16MiB").close()
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            Space.open("demo").close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                Space.open("demo").close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        thread.join()


def test_unknown_names_answer_quickly_in_a_large_space(space: Space) -> None:
    for number in range(3000):
        space.put(f"array {number}", np.zeros(1, np.uint8))
    with pytest.raises(UnknownName, match=r"there is no array 'arry 1'$"):
        space["arry 1"]
