"""Handles that are sent to other processes: DataLoader, Pool, Queue and pickle itself."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from openshelf import Array, Folder, KVPool, Layout, Space
from openshelf.errors import BadInput, Closed, NotPermitted, UnknownName
from tests.processes import WATCHDOG
from tests.space import shelf
from tests.space.habits.sent_worker import fill, total, unnamed

LAYOUT = Layout("m", layers=1, heads=1, head_dim=4, dtype="float32")


def again(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def test_a_handle_is_sent_as_an_address(space: Space) -> None:
    big = space.put("f/big", np.arange(1 << 20, dtype=np.int32).reshape(1024, 1024))
    assert len(pickle.dumps(big)) < 500
    same = again(big)
    assert (type(same), same.name, same.address, same.shape) == (Array, "f/big", big.address, big.shape)
    same[0, 0] = 7
    assert big[0, 0] == 7
    part = again(big[3:5][1])
    assert (part.address, part.shape) == (big[4].address, (1024,))
    assert not again(big.read_only()).numpy().flags.writeable
    assert not again(big.read_only()[0]).numpy().flags.writeable
    pairs = space.put("pairs", np.array([(1, 2.0), (3, 4.0)], [("i", "i4"), ("x", "f8")]))
    assert again(pairs[1:])["x"].tolist() == [4.0]
    assert again(space.zeros("bf", 3, "bfloat16")).torch().dtype == torch.bfloat16
    assert again(space)["f/big"].address == big.address
    folder = again(space.folder("f"))
    assert (type(folder), list(folder)) == (Folder, ["big"])
    with pytest.raises(BadInput, match="not copied"):
        copy.deepcopy(big)
    with pytest.raises(BadInput, match="not copied"):
        copy.copy(space)
    assert shelf.problems(space) == shelf.SOUND


def test_a_pool_is_sent_with_its_tenant(space: Space) -> None:
    pool = KVPool(space, LAYOUT, 4, capacity="1MiB", tenant="one", salt=b"secret", verify=True)
    tokens, cache = list(range(8)), np.ones(LAYOUT.shape(8), "float32")
    pool.put(tokens, cache)
    sent = pickle.dumps(pool)
    assert b"secret" not in sent
    with pickle.loads(sent) as there:
        assert (there.tenant, there.verify, there.layout) == ("one", True, LAYOUT)
        assert there.present(tokens) == 8
        assert there.for_tenant("two").present(tokens) == 0
        there.put(list(range(100, 104)), cache[:, :, :4])
    assert pool.present(list(range(100, 104))) == 4
    space.delete("kv")
    with pytest.raises(UnknownName, match=r"no pool 'kv'.*any more"):
        pickle.loads(sent).present(tokens)
    pool.close()
    with pytest.raises(Closed):
        pickle.dumps(pool)


def test_what_cannot_be_sent_raises_in_the_sender(space: Space) -> None:
    array, pool = space.zeros("a", 4, "int32"), KVPool(space, LAYOUT, 4, capacity="1MiB")
    with space.lock("l") as lock:
        for thing, expected in [
            (space.put(None, np.zeros(3)), r"without a name cannot be pickled.*publish\(name\)"),
            (space.new("draft", 3), r"'draft' is a draft.*publish\(\)"),
            (lock, r"a Lock cannot be pickled: send its space, and take it there: space\.lock\(name\)"),
            (space.channel("c"), "a Channel cannot"),
            (space.counter("n"), "a Counter cannot"),
            (space.barrier("b", 1), "a Barrier cannot"),
            (array.atomic(), "an Atomic cannot"),
            (space.get(array.address, bytearray(4)), "a Transfer cannot.*wait for it"),
            (array.pin(), "a Pinned cannot"),
            (pool.match([1, 2, 3, 4]), "a Hit cannot.*match the prompt again"),
            (pool.match([1, 2, 3, 4]).layer(0), "a layer of a Hit cannot"),
            (pool.draft([1, 2, 3, 4]), "a Draft cannot"),
        ]:
            with pytest.raises(BadInput, match=expected):
                pickle.dumps(thing)
    space.delete("a")
    with pytest.raises(BadInput, match="without a name"):
        pickle.dumps(array)
    closed = Space.open("shelf")
    closed.close()
    with pytest.raises(Closed):
        pickle.dumps(closed)


def test_what_is_gone_raises_at_its_first_use_and_not_while_it_is_unpickled(home: Path) -> None:
    space = Space.create("demo", "16MiB")
    kept, deleted, replaced = (space.put(name, np.zeros(3)) for name in ("kept", "deleted", "replaced"))
    sent = [pickle.dumps(each) for each in (kept, deleted, replaced, space)]
    space.delete("deleted")
    space["replaced"] = np.ones(3)
    for each in sent[1:3]:
        lost = pickle.loads(each)
        uses: list[Any] = [
            lambda lost=lost: lost.numpy(),
            lambda lost=lost: lost[0],
            lambda lost=lost: lost + 1,
            lambda lost=lost: np.sum(lost),
            lambda lost=lost: torch.as_tensor(lost),
            lambda lost=lost: len(again(lost)),
        ]
        for use in uses:
            with pytest.raises(UnknownName, match="was deleted or replaced while its handle was under way"):
                use()
    Space.remove("demo")
    with pytest.raises(Closed):
        pickle.dumps(kept)
    with pytest.raises(UnknownName, match="there is no space"):
        pickle.loads(sent[3]).put("a", 1)
    with Space.create("demo", "16MiB") as other:
        other["kept"] = np.ones(3)
        for each in (sent[0], sent[3]):
            with pytest.raises(UnknownName, match="was removed, and another has its name now"):
                pickle.loads(each)["kept"]


def test_a_handle_arrives_in_the_mode_that_the_process_has(home: Path) -> None:
    Space.create("demo", "16MiB")["a"] = np.zeros(3)
    with Space.open("demo", "r") as space:
        sent = pickle.dumps(space["a"])
    with Space.open("demo") as space:
        array = pickle.loads(sent)
        with pytest.raises(NotPermitted, match="read-only"):
            array[0] = 1
        wide = pickle.dumps(space["a"])
        del array
    with Space.open("demo", "r"):
        with pytest.raises(NotPermitted, match="read-only"):
            pickle.loads(wide)[0] = 1


def test_a_space_over_hosts_is_sent_by_its_url(url: str) -> None:
    with Space.open(url, contribute="16MiB") as space:
        array = space.put("a", np.arange(4.0))
        assert again(array).address == array.address
        assert again(space)["a"].numpy().tolist() == [0, 1, 2, 3]
        sent = pickle.dumps(array)
        del array
    gc.collect()
    Space.remove(url)
    with pytest.raises(UnknownName, match="there is no space"):
        pickle.loads(sent).numpy()
    with Space.open(url, contribute="16MiB") as other:
        other["a"] = np.ones(4)
        with pytest.raises(UnknownName, match="another has its name now"):
            pickle.loads(sent).numpy()


# Other processes


@pytest.fixture(params=["spawn", "forkserver"])
def context(request: pytest.FixtureRequest) -> Any:
    return multiprocessing.get_context(request.param)


def test_pools_and_queues_carry_handles_and_nobody_waits_for_ever(space: Space, context: Any) -> None:
    array = space.put("a", np.arange(4.0))
    gone = space.put("gone", np.arange(4.0))
    with context.Pool(1) as workers:
        assert workers.map(total, [array, array[1:], array.read_only()], 1) == [6, 6, 6]
        came = workers.apply_async(fill, (space, "made")).get(WATCHDOG)
        assert (came.name, came.numpy().tolist()) == ("made", [2, 2, 2, 2])
        with pytest.raises(BadInput, match="without a name"):
            workers.apply_async(total, (space.put(None, np.zeros(3)),)).get(WATCHDOG)
        with pytest.raises(Exception, match="without a name"):
            workers.apply_async(unnamed, (space,)).get(WATCHDOG)
        lost = pickle.dumps(gone)
        space.delete("gone")
        with pytest.raises(UnknownName, match="deleted or replaced"):
            workers.apply_async(total, (pickle.loads(lost),)).get(WATCHDOG)
        assert workers.apply_async(total, (array,)).get(WATCHDOG) == 6
    queue = context.Queue()
    queue.put(array)
    queue.put(space.put(None, np.zeros(3)))
    assert queue.get(timeout=WATCHDOG).address == array.address
    with pytest.raises(BadInput, match="without a name"):
        queue.get(timeout=WATCHDOG).numpy()


def test_an_executor_carries_handles(space: Space) -> None:
    array = space.put("a", np.arange(4.0))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
        assert workers.submit(total, array).result(WATCHDOG) == 6
        with pytest.raises(BadInput, match="without a name"):
            workers.submit(total, space.put(None, np.zeros(3))).result(WATCHDOG)


class Rows(Dataset[Any]):  # type: ignore[misc]
    def __init__(self, rows: Array) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.rows[index])


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_a_data_loader_reads_a_shared_array(space: Space, method: str) -> None:
    rows = space.put("rows", np.arange(24.0).reshape(8, 3))
    loader = DataLoader(Rows(rows), 4, num_workers=1, multiprocessing_context=method, timeout=WATCHDOG)
    assert torch.cat(list(loader)).tolist() == rows.numpy().tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_an_array_become_batches_as_ndarrays_do(space: Space, dtype: str) -> None:
    rows = space.put("rows", torch.arange(24.0).reshape(8, 3).to(getattr(torch, dtype)))
    items = [{"row": (rows if at % 2 else rows.read_only())[at], "label": at} for at in range(4)]
    loader: Any = DataLoader(items, 4, num_workers=1, multiprocessing_context="fork", timeout=WATCHDOG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain: Any = DataLoader([(row["row"], rows.read_only()) for row in items[1::2]], 2)
        ((first, whole),) = plain
    (batch,) = loader
    assert torch.equal(batch["row"], rows.torch()[:4])
    assert torch.equal(first, rows.torch()[1:4:2])
    assert whole.shape == (2, 8, 3)
    first[:] = 9
    assert rows.torch()[1, 0] == 3, "a batch is a copy"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_array_is_a_dataset(space: Space, dtype: str, workers: int) -> None:
    rows = space.put("rows", torch.arange(24.0).reshape(8, 3).to(getattr(torch, dtype)))
    method = "fork" if workers else None
    loader = DataLoader(rows, 3, num_workers=workers, multiprocessing_context=method, timeout=workers * WATCHDOG)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert torch.equal(torch.cat(batches), rows.torch())
    batches[0][:] = 9
    assert rows.torch()[0, 0] == 0, "a batch is a copy"
