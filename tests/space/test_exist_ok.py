"""What is given for something that exists already is what it has, or is refused: nothing is dropped in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import Mismatch
from openshelf.kv import KVPool, Layout


def make(dram: str | int = "16MiB", **given: Any) -> Space:
    return Space.create("shelf", dram, exist_ok=True, **given)


def test_the_same_again_is_opened(home: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"backing": tmp_path, "reserve": "64GiB", "base": 0x2900_0000_0000}
    with make(**given) as space, make(**given) as again, make(16 << 20) as third:
        space.put("x", np.arange(3))
        assert again["x"].numpy().tolist() == third["x"].numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dram": "32MiB"}, r"dram is 16 MiB \(16777216 bytes\), not 32 MiB \(33554432 bytes\)"),
        ({"dram": "8MiB"}, "dram is 16 MiB .* not 8 MiB"),
        ({"flash": "/dev/shm:64MiB", "dram": "32MiB"}, "flash is none, not"),
        ({"flash": "/dev/shm:512MiB", "durable": True, "dram": "32MiB"}, "durable is False, not True"),
        ({"backing": "/dev/shm"}, "backing is data, not /dev/shm/"),
        ({"base": 0x2900_0000_0000}, "base is 0x[0-9a-f]+, not 0x290000000000"),
        ({"reserve": "256GiB"}, "reserve is 128 GiB, not 256 GiB"),
        ({"group": "daemon"}, "group is none, not "),
    ],
)
def test_what_a_space_does_not_have_is_refused_with_both_values(
    home: Path, given: dict[str, Any], message: str
) -> None:
    with make() as space:
        space.put("x", np.arange(3))
    before = sorted(os.listdir("/dev/shm"))
    with pytest.raises(Mismatch, match=f"(?s)the space 'shelf' exists, and is another than asked for: .*{message}"):
        make(**given)
    assert [name for name in sorted(os.listdir("/dev/shm")) if name not in before and "shelf" in name] == []
    with Space.open("shelf") as space:
        assert space["x"].numpy().tolist() == [0, 1, 2]


def test_a_space_that_grew_is_still_the_one_that_was_asked_for(home: Path) -> None:
    with make() as space:
        space.grow("16MiB")
        make("16MiB").close()
        make("32MiB").close()
        with pytest.raises(Mismatch, match=r"dram is 32 MiB .* not 24 MiB"):
            make("24MiB")


def test_another_flash_is_refused(home: Path, tmp_path: Path) -> None:
    def flash(path: str, dram: str = "32MiB", **more: Any) -> Space:
        return make(dram, flash=f"{tmp_path}/{path}", **more)

    with flash("one:64MiB"), flash("one:64MiB"), make("32MiB"):
        with pytest.raises(Mismatch, match="the capacity of flash is 64 MiB, not 128 MiB"):
            flash("one:128MiB")
        with pytest.raises(Mismatch, match=r"flash is .*one.*, not .*two"):
            flash("two:64MiB")
        with pytest.raises(Mismatch, match="dram is 32 MiB, not 48 MiB"):
            flash("one:64MiB", "48MiB")
        with pytest.raises(Mismatch, match="durable is False, not True"):
            flash("one:64MiB", durable=True)
    Space.remove("shelf")


def test_a_channel_of_other_figures_is_refused(space: Space) -> None:
    space.channel("todo", capacity=8, message_bytes=100)
    assert space.channel("todo").capacity == 8
    assert space.channel("todo", 8, 100).message_bytes >= 100
    with pytest.raises(Mismatch, match="channel 'todo' has room for 8 messages, not 16"):
        space.channel("todo", capacity=16)
    with pytest.raises(Mismatch, match=r"channel 'todo' has messages of at most 1.. bytes, not 4096"):
        space.channel("todo", message_bytes=4096)
    with pytest.raises(Mismatch, match="not 64"):
        space.channel("todo", 64, 256)


def test_a_barrier_of_other_parties_and_things_of_another_kind_are_refused(space: Space) -> None:
    space.barrier("step", 4)
    with pytest.raises(Mismatch, match="barrier 'step' has 4 parties, not 3"):
        space.barrier("step", 3)
    for make_another in (space.lock, space.counter, space.channel):
        with pytest.raises(Mismatch, match="'step' is of kind barrier"):
            make_another("step")


def test_a_pool_of_another_capacity_is_refused(space: Space) -> None:
    layout = Layout("m", layers=2, heads=2, head_dim=8, dtype="float32")
    KVPool(space, layout, capacity="1MiB").close()
    KVPool(space, layout, capacity="1MiB").close()
    KVPool(space, layout).close()
    with pytest.raises(Mismatch, match=r"has room for .* blocks, and capacity='2MiB' is room for"):
        KVPool(space, layout, capacity="2MiB")
