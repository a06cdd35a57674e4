"""Spaces: made, opened, listed, closed and removed; at the same addresses in every process."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space, spaces
from openshelf.errors import BadInput, Closed, NameTaken, NotPermitted, UnknownName
from openshelf.space.create import registry
from openshelf.space.hosts import by_etcd
from openshelf.space.hosts.urls import EtcdUrl
from tests.processes import Peer, in_fresh_process
from tests.space import shelf


def test_created_space_is_found_by_name_and_by_path(home: Path) -> None:
    with Space.create("shelf", "16MiB") as space:
        space.put("a", np.arange(3))
        for way in ("shelf", str(home / "shelf")):
            with Space.open(way) as again:
                assert again.name == "shelf"
                assert again["a"].numpy().tolist() == [0, 1, 2]


def test_create_refuses_a_taken_name_unless_asked_not_to(home: Path) -> None:
    with Space.create("shelf", "16MiB") as space:
        space.put("a", np.ones(3))
        with pytest.raises(NameTaken, match="exist_ok=True"):
            Space.create("shelf", "16MiB")
        with Space.create("shelf", "16MiB", exist_ok=True) as same:
            assert same["a"].numpy().sum() == 3
            assert same.describe()["bytes"] == 16 << 20


def test_space_outlives_the_processes_that_had_it_open(space: Space) -> None:
    space.put("a", np.arange(1000))
    space.close()
    assert in_fresh_process(_sum_of_a) == 499500


def _sum_of_a() -> int:
    with Space.open("shelf") as space:
        return int(space["a"].numpy().sum())


def test_several_spaces_live_in_one_process_at_disjoint_addresses(home: Path) -> None:
    opened = [Space.create(f"space-{number}", "16MiB") for number in range(5)]
    for number, space in enumerate(opened):
        space.put("a", np.full(100, number))
    ranges = sorted((s.describe()["base"], s.describe()["reserve"]) for s in opened)
    for (base, reserve), (above, _) in itertools.pairwise(ranges):
        assert base + reserve <= above
    for number, space in enumerate(opened):
        assert space["a"].numpy().tolist() == [number] * 100
        assert shelf.problems(space) == shelf.SOUND


def test_removed_space_is_gone_for_newcomers_and_its_name_is_free(home: Path) -> None:
    first = Space.create("shelf", "16MiB")
    first.put("a", np.zeros(3))
    Space.remove("shelf")
    with pytest.raises(UnknownName):
        Space.open("shelf")
    with pytest.raises(Closed, match="removed"):
        first["a"]
    with Space.create("shelf", "16MiB") as second:
        assert list(second) == []


def test_remove_leaves_no_file_behind(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    Space.remove("shelf")
    assert [path.name for path in home.iterdir()] == [".lock"]


def test_addresses_of_a_removed_space_are_used_again(home: Path) -> None:
    with Space.create("one", "16MiB") as space:
        base = space.describe()["base"]
    Space.remove("one")
    with Space.create("two", "16MiB") as space:
        assert space.describe()["base"] == base


def test_spaces_lists_names_and_members(home: Path, peer: Peer) -> None:
    assert spaces() == []
    with Space.create("one", "16MiB") as one, Space.create("two", "16MiB"):
        peer.call(shelf.open_space, "one")
        listed = {entry["name"]: entry for entry in spaces()}
        assert listed["one"]["members"] == 2
        assert listed["one"]["base"] == one.describe()["base"]
        assert listed["two"]["members"] == 1


def test_spaces_lists_a_damaged_space_with_what_is_wrong(home: Path) -> None:
    Space.create("shelf", "16MiB").close()
    (home / "shelf" / "control").write_bytes(b"no control file")
    (entry,) = spaces()
    assert "not the control file" in entry["error"]
    Space.remove("shelf")
    assert spaces() == []


@pytest.mark.parametrize("host", ["10.0.0.1:7400", "localhost:7400", "storage-s1.example:7400", "[fd00::1]:7400"])
def test_a_part_of_a_space_over_hosts_is_never_opened_as_a_plain_space(home: Path, host: str) -> None:
    """That would pass by what keeps the hosts' copies alike."""
    Space.create("demo", "16MiB").close()
    part = (home / "demo").rename(home / f"demo@{host}")
    for use in (Space.open, Space.remove):
        with pytest.raises(BadInput, match=re.escape(f"use its URL, openshelf://{host}/demo")):
            use(part)
    with pytest.raises(UnknownName, match=re.escape(f"it has a part: openshelf://{host}/demo")):
        Space.open("demo")
    assert registry.names(shards=True) == [f"demo@{host}"]


def test_files_and_folders_of_others_among_the_spaces_do_no_harm(home: Path, tmp_path: Path) -> None:
    Space.create("one", "16MiB").close()
    for name in (b"\xff\xfe", b".gone-1-\xff", b".new-\xff", b"a b", b"x@y:z", b"demo@h:port", b"x\n\x1b[31m"):
        Space.create("odd", "16MiB").close()
        (home / "odd").rename(os.fsdecode(bytes(home) + b"/" + name))
    os.mkfifo(home / "pipe")
    (home / "itself").symlink_to("itself")
    with Space.create("two", "16MiB") as two:
        two.put("a", np.arange(3))
        assert [entry["name"] for entry in spaces() if "error" not in entry] == ["one", "two"]
    assert by_etcd.own_host(EtcdUrl(("127.0.0.1:2379",), "demo"), home) == "127.0.0.1:7400"
    Space.remove("two")
    with Space.temporary("16MiB"):
        pass


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_address_means_the_same_bytes_in_every_process(space: Space, method: str) -> None:
    mine = space.put("mine", np.arange(5000))
    with Peer(method) as peer:
        assert peer.call(shelf.open_space) == space.describe()["data_address"]
        assert peer.call(shelf.address_of, "mine") == mine.address
        assert np.array_equal(peer.call(shelf.read_at, mine.address, 5000, "int64"), np.arange(5000))
        theirs = peer.call(shelf.put, "theirs", np.arange(7.0))
        assert space["theirs"].address == theirs
        assert space.at(theirs, 7, "float64").numpy().tolist() == list(range(7))


def test_store_in_one_process_is_loaded_in_the_other(space: Space, peer: Peer) -> None:
    view = space.zeros("a", 4096, "uint8").numpy()
    peer.call(shelf.open_space)
    peer.call(shelf.write_raw, space["a"].address, 7, 4096)
    assert (view == 7).all()
    view[:] = 9
    assert peer.call(shelf.read_raw, space["a"].address, 4096) == b"\x09" * 4096


def test_chosen_base_is_kept(home: Path) -> None:
    with Space.create("shelf", "16MiB", base=0x2A00_0000_0000) as space:
        assert space.describe()["base"] == 0x2A00_0000_0000
        assert 0x2A00_0000_0000 < space.put("a", np.ones(3)).address < 0x2A00_0000_0000 + space.describe()["reserve"]


def test_describe_counts_members_and_free_bytes(space: Space, peer: Peer) -> None:
    before = space.describe()
    peer.call(shelf.open_space)
    space.put("a", np.zeros(10 << 20, np.uint8))
    after = space.describe()
    assert before["free"] - after["free"] == 10 << 20
    assert {member["pid"] for member in after["members"]} - {member["pid"] for member in before["members"]} == {
        peer.pid
    }
    assert after["file_system"] == "tmpfs"


def test_one_process_cannot_have_a_space_open_in_two_modes(space: Space) -> None:
    with pytest.raises(NotPermitted, match="page protection is per process"):
        Space.open("shelf", "r")


def test_a_second_close_does_nothing(space: Space) -> None:
    again = Space.open("shelf")
    again.close()
    again.close()
    assert repr(again) == "Space(closed)"
    assert repr(space) == "Space('shelf')"
