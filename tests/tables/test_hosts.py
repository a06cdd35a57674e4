"""Tables over two hosts: the rows of one table, wherever they are, while they move, and whoever is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf.tables import SGD, Adam, RowwiseAdagrad
from tests.processes import Failed
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer
from tests.tables import hosts_worker as at

Hosts = tuple[Cluster, NurseryPeer, NurseryPeer]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts on loopback, and a process on each."""
    with Cluster(2) as cluster:
        peers = [host.peer() for host in cluster.hosts]
        for host, peer in zip(cluster.hosts, peers, strict=True):
            peer.call(at.enter, host.url())
        yield cluster, peers[0], peers[1]


def _same(pair: tuple[Any, Any]) -> None:
    np.testing.assert_array_equal(*pair)


def test_rows_on_two_hosts_are_those_of_one_table(hosts: Hosts) -> None:
    _, one, two = hosts
    one.call(at.create, "t", "all", Adam(0.1))
    assert two.call(at.open_it, "t", False) == at.ROWS
    chance = np.random.default_rng(0)
    ids, offsets = chance.integers(0, at.ROWS, 400), np.arange(0, 400, 8)
    for mode in ("sum", "mean", "max"):
        _same(one.call(at.both, "bag", ids, offsets, mode))
    _same(one.call(at.both, "bag", ids, offsets, "sum", np.linspace(0, 1, 400, dtype=np.float32)))
    everything = np.arange(at.ROWS)
    for step in range(3):  # trained from both hosts: one time for all shards, also where a batch has no rows
        some = chance.integers(0, at.ROWS if step else 50, 100)
        gradients = chance.normal(size=(100, at.DIM)).astype(np.float32)
        (one if step % 2 else two).call(at.call, "update", some, gradients)
        one.call(at.ref, "update", some, gradients)
        _same(one.call(at.both, "lookup", everything))
        _same(one.call(at.both, "states", everything))
    two.call(at.call, "write", [5, 999, 5], np.array([[1.0] * at.DIM, [2.0] * at.DIM, [3.0] * at.DIM]))
    assert one.call(at.whole_rows, [5, 999])[:, 0].tolist() == [3.0, 2.0]
    facts = two.call(at.call, "stat")
    assert len(facts["hosts"]) == 2
    assert facts["fetched_ids"] + facts["own_ids"] == 0  # it has only written so far


def test_sums_at_the_owner_are_the_same_sums(hosts: Hosts) -> None:
    _, one, two = hosts
    one.call(at.create, "t", [0], RowwiseAdagrad(0.1))
    two.call(at.open_it, "t")
    ids = np.random.default_rng(1).integers(0, at.ROWS, 900)
    for mode in ("sum", "mean"):
        expected = one.call(at.ref, "bag", ids, np.arange(0, 900, 30), mode)
        np.testing.assert_allclose(two.call(at.call, "bag", ids, np.arange(0, 900, 30), mode), expected, rtol=1e-5)
    facts = two.call(at.call, "stat")
    assert facts["ids_summed_there"] > 0
    assert len(facts["hosts"]) == 1


def test_a_table_grows_on_all_hosts_and_is_deleted_on_all(hosts: Hosts) -> None:
    _, one, two = hosts
    one.call(at.create, "t", "all", SGD(0.1), at.ROWS, "float16")
    two.call(at.open_it, "t")
    with pytest.raises(Failed, match=r"OutOfRange: id 1000, at position 1 of 2.*'t' \(1000 rows\)"):
        two.call(at.call, "lookup", [1, 1000])
    one.call(at.call, "grow", 500)
    one.call(at.ref, "grow", 500)
    _same(one.call(at.both, "lookup", np.arange(1500)))
    two.call(at.call, "update", [1499], np.ones((1, at.DIM)))  # the other process finds the new rows, too
    with pytest.raises(Failed, match="BadInput: gradient 0 for the table 't' has nan"):
        two.call(at.call, "update", [1499], np.full((1, at.DIM), np.nan))
    assert one.call(at.shown, "t") == (["t", "t-ref"], 1500)
    one.call(at.delete, "t-ref")
    assert two.call(at.delete, "t") == []
    with pytest.raises(Failed, match=r"errors.(Closed|UnknownName)"):
        one.call(at.call, "lookup", [1, 999])
    with pytest.raises(Failed, match="UnknownName: there is no table 't'"):
        two.call(at.open_it, "t")


def test_copies_serve_look_ups_and_follow_changes(hosts: Hosts) -> None:
    _, one, two = hosts
    one.call(at.create, "t", [0], SGD(1.0))
    two.call(at.open_it, "t")
    two.call(at.keep_copies, 100, 0.4)
    for _ in range(3):
        two.call(at.call, "lookup", np.arange(100))
    facts = two.call(at.call, "stat")
    assert (facts["fetched_ids"], facts["copied_ids"], facts["hot_rows"]) == (100, 200, 100)
    two.call(at.call, "write", [7], np.full((1, at.DIM), 5.0))
    assert two.call(at.call, "lookup", [7])[0, 0] == 5.0  # what a process writes it reads at once
    one.call(at.call, "write", [8], np.full((1, at.DIM), 6.0))
    two.call(at.wait_for, 8, 6.0, 30.0)
    assert two.call(at.call, "stat")["refreshed_rows"] > 0
    two.call(at.keep_copies, 0, 1.0)
    assert two.call(at.call, "lookup", [8])[0, 0] == 6.0


def test_rows_that_are_wanted_most_stay_and_rows_asked_for_early_are_there(hosts: Hosts) -> None:
    _, one, two = hosts
    one.call(at.create, "t", [0], SGD(1.0))
    two.call(at.open_it, "t")
    two.call(at.keep_copies, 50, 60.0)
    chance = np.random.default_rng(2)
    for _ in range(20):
        two.call(at.call, "lookup", np.concatenate([np.arange(40), 100 + chance.integers(0, 900, 60)]))
    before = two.call(at.call, "stat")
    two.call(at.call, "lookup", np.arange(40))
    after = two.call(at.call, "stat")
    assert after["copied_ids"] - before["copied_ids"] >= 38
    assert after["hot_rows"] == 50
    two.call(at.call, "prefetch", np.arange(500, 700))
    expected = one.call(at.call, "lookup", np.arange(500, 700))
    _same((two.call(at.call, "lookup", np.arange(500, 700)), expected))
    assert two.call(at.call, "stat")["fetched_ids"] == after["fetched_ids"]  # it waited for what was on its way


def test_blocks_move_while_rows_are_updated_and_no_update_is_lost(hosts: Hosts) -> None:
    cluster, one, two = hosts
    one.call(at.create, "t", [0], SGD(1.0))
    two.call(at.open_it, "t")
    third = cluster[1].peer()
    third.call(at.enter, cluster[1].url())
    third.call(at.open_it, "t")
    two.call(at.keep_copies, 200, 0.4)
    begun = one.call(at.call, "lookup", np.arange(at.ROWS))
    one.start(at.add_ones, 60, 1)
    two.start(at.add_ones, 60, 2)
    moved = [third.call(at.call, "reshard", where) for where in ([1], [0, 1], [1, 0], "all")]
    counts = one.finish() + two.finish()
    assert moved[0] == 16
    assert all(moved[1:3])
    found = third.call(at.call, "lookup", np.arange(at.ROWS))
    np.testing.assert_allclose(found, begun + counts[:, None], rtol=1e-5)
    _same((one.call(at.call, "lookup", np.arange(at.ROWS)), found))


@pytest.mark.parametrize("turns", [12, pytest.param(250, marks=pytest.mark.soak)])
def test_a_mover_and_a_trainer_that_are_killed_leave_a_table_in_use(hosts: Hosts, turns: int) -> None:
    cluster, one, two = hosts
    one.call(at.create, "t", "all", SGD(1.0))
    two.call(at.open_it, "t")
    begun = one.call(at.call, "lookup", np.arange(at.ROWS))
    chance = random.Random(3)
    for turn in range(turns):
        mover, trainer = cluster[0].peer(), cluster[1].peer()
        for peer, host in ((mover, cluster[0]), (trainer, cluster[1])):
            peer.call(at.enter, host.url())
            peer.call(at.open_it, "t")
        mover.start(at.reshard_for_ever)
        trainer.start(at.add_for_ever, turn)
        time.sleep(0.05 + 0.2 * chance.random())
        mover.kill()
        trainer.kill()
        two.call(at.add_ones, 2, turn)
    two.call(at.call, "reshard", "all")
    two.call(at.call, "update", np.arange(at.ROWS), np.zeros((at.ROWS, at.DIM)))  # no block is left half-way
    added = two.call(at.call, "lookup", np.arange(at.ROWS)) - begun
    assert np.abs(added - np.round(added)).max() < 1e-3
    assert np.ptp(np.round(added), axis=1).max() == 0  # whole rows
    assert added.sum() >= turns * 2 * 64 * at.DIM
    _same((one.call(at.call, "lookup", np.arange(at.ROWS)), two.call(at.call, "lookup", np.arange(at.ROWS))))


def test_rows_of_a_lost_host_are_an_error_that_names_it_and_others_are_read(hosts: Hosts) -> None:
    cluster, one, two = hosts
    one.call(at.create, "t", [0, 1], SGD(1.0))
    first = one.call(at.call, "lookup", [0])
    two.kill()
    cluster[1].kill()
    with pytest.raises(Failed, match=f"HostLost: the host {cluster[1].address} is lost"):
        one.call(at.call, "lookup", [999])
    _same((one.call(at.call, "lookup", [0]), first))


def test_a_checkpoint_of_one_host_is_restored_to_two_and_missing_parts_are_named(hosts: Hosts, tmp_path: Path) -> None:
    _, one, two = hosts
    one.call(at.create, "t", [0], Adam(0.1))
    ids, gradients = np.arange(0, at.ROWS, 7), np.ones((143, at.DIM))
    one.call(at.call, "update", ids, gradients)
    one.call(at.ref, "update", ids, gradients)
    one.call(at.save, str(tmp_path / "saved"))
    one.call(at.restore, "back", str(tmp_path / "saved"), "all")
    for name in ("lookup", "states"):
        _same(one.call(at.both, name, np.arange(at.ROWS)))
    assert len(one.call(at.call, "stat")["hosts"]) == 2
    one.call(at.call, "update", ids, gradients)  # Adam's time goes on where it was
    one.call(at.ref, "update", ids, gradients)
    _same(one.call(at.both, "lookup", np.arange(at.ROWS)))
    (tmp_path / "saved" / "rows-00002.npy").unlink()
    with pytest.raises(Failed, match=r"BadInput: .*8 files of rows, and 1 are missing: rows-00002.npy"):
        two.call(at.restore, "other", str(tmp_path / "saved"), "all")
    with pytest.raises(Failed, match="UnknownName"):
        two.call(at.open_it, "other")
