"""What a pool finds, shows, stores, keeps and drops."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openshelf import KVPool, Layout, Space
from openshelf.errors import BadInput, Closed, Mismatch
from openshelf.kv import Stored
from tests.kv.prompts import BLOCK, LAYOUT, assert_sound, cache_of, check_hit, look, put, small_pool, tokens_of
from tests.kv.worker import look_in, make_and_put, read_only
from tests.processes import Peer, in_fresh_process
from tests.space import shelf


def test_the_longest_prefix_is_found_and_right(pool: KVPool) -> None:
    assert put(pool, [1, 2, 3]) == Stored(3, 0, 3, 0)
    assert put(pool, [1, 2, 4, 5]) == Stored(4, 2, 2, 0)
    assert look(pool, [1, 2, 3]) == 3
    assert look(pool, [1, 2, 4, 6]) == 3
    assert look(pool, [2]) == 0
    assert pool.present(tokens_of([1, 2, 9])) == 2 * BLOCK
    assert pool.contains(tokens_of([1, 2, 3]))
    assert not pool.contains(tokens_of([1, 2, 3, 4]))


def test_a_last_block_that_is_not_full_is_left_out(pool: KVPool) -> None:
    tokens, cache = tokens_of([1, 2])[:-1], cache_of([1, 2])[:, :, :-1]
    assert pool.put(tokens, cache) == Stored(1, 0, 1, 0)
    with pool.match(tokens) as hit:
        assert hit.length == BLOCK
    assert pool.put(tokens[:2], cache[:, :, :2]) == Stored(0, 0, 0, 0)
    with pool.match([]) as hit:
        assert hit.length == 0
        assert hit.read().shape == LAYOUT.shape(0)


def test_views_are_in_place_and_read_only(pool: KVPool) -> None:
    put(pool, [1, 2, 3])
    with pool.match(tokens_of([1, 2, 3])) as hit:
        layer = hit.layer(1)
        assert len(layer) == 3
        assert np.array_equal(np.concatenate(list(layer), axis=1), cache_of([1, 2, 3])[1])
        assert np.array_equal(layer[-1], layer[2])
        assert len(layer[1:]) == 2
        assert not layer[0].flags.writeable
        with pool.match(tokens_of([1])) as other:  # the same bytes, not a copy
            assert other.layer(1)[0].ctypes.data == layer[0].ctypes.data
        assert np.array_equal(hit.memory(1)[hit.table], np.stack(list(layer)))
        with pytest.raises(IndexError):
            layer[3]
        with pytest.raises(IndexError):
            hit.block(3)


def test_a_hit_copies_into_arrays_and_tensors(pool: KVPool) -> None:
    put(pool, [1, 2, 3])
    cache = cache_of([1, 2, 3])
    with pool.match(tokens_of([1, 2, 3])) as hit:
        assert np.array_equal(hit.read(), cache)
        assert np.array_equal(hit.read(start=BLOCK), cache[:, :, BLOCK:])
        assert np.array_equal(hit.read_layer(0), cache[0])
        longer = torch.zeros(LAYOUT.layer_shape(20), dtype=torch.int32)
        hit.read_layer(1, longer)
        assert np.array_equal(longer.numpy()[:, :12], cache[1])
        assert not longer[:, 12:].any()
        pair = (np.empty((12, 2, 4), np.int32), np.empty((12, 2, 4), np.int32))
        hit.read_layer(0, pair)
        assert np.array_equal(np.stack(pair), cache[0])
        layers = [np.empty(LAYOUT.layer_shape(12), np.int32) for _ in range(2)]
        hit.read(layers)
        assert np.array_equal(np.stack(layers), cache)


@pytest.mark.parametrize("order", ["kthd", "khtd", "tkhd", "hktd", "thkd", "hdkt"])
def test_every_order_of_axes_comes_back(space: Space, order: str) -> None:
    layout = replace(LAYOUT, order=order)
    pool = KVPool(space, layout, BLOCK, capacity="1MiB")
    tokens = np.arange(3 * BLOCK)
    cache = np.random.default_rng(1).integers(0, 1 << 30, layout.shape(len(tokens))).astype(np.int32)
    pool.put(tokens, cache)
    axis = layout.token_axis
    with pool.match(tokens) as hit:
        assert np.array_equal(hit.read(), cache)
        assert np.array_equal(np.concatenate(list(hit.layer(1)), axis=axis), cache[1])
    halves = np.moveaxis(cache, 1 + order.index("k"), 0)
    pairs = [(keys, values) for keys, values in zip(halves[0], halves[1], strict=True)]
    assert pool.put(tokens + 1000, pairs).stored == 3
    with pool.match(tokens + 1000) as hit:
        assert np.array_equal(hit.read(), cache)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ["kthd", "khtd", "tkhd"])
@pytest.mark.parametrize("with_torch", [False, True])
def test_an_engines_pages_are_filled_and_stored(space: Space, axis: int, order: str, with_torch: bool) -> None:
    layout = replace(LAYOUT, order=order)
    pool = KVPool(space, layout, BLOCK, capacity="1MiB")
    tokens, table = np.arange(3 * BLOCK), np.array([6, 1, 4])
    if axis > layout.token_axis:
        return  # pages would not be contiguous
    memory = [
        np.random.default_rng(n).integers(0, 99, (8, *layout.layer_shape(BLOCK))).astype(np.int32) for n in (1, 2)
    ]
    given: list[Any] = [np.ascontiguousarray(np.moveaxis(layer, 0, axis)) for layer in memory]
    if with_torch:
        given = [torch.from_numpy(layer) for layer in given]
    with pool.draft(tokens) as draft:
        for layer in range(2):
            draft.put_pages(layer, given[layer], table, axis=axis)
    with pool.match(tokens) as hit:
        for layer in range(2):
            assert np.array_equal(np.stack(list(hit.layer(layer))), memory[layer][table])
            out = np.zeros_like(np.asarray(given[layer]))
            hit.read_pages(layer, torch.from_numpy(out) if with_torch else out, [5, 0], axis=axis, start=BLOCK)
            pages = np.moveaxis(out, axis, 0)
            assert np.array_equal(pages[[5, 0]], memory[layer][table[1:]])
            assert not pages[[1, 2, 3, 4, 6, 7]].any()
            later = hit.read_pages_async(layer, torch.from_numpy(out) if with_torch else out, [1, 3, 2], axis=axis)
            assert later.result() is None
            assert np.array_equal(pages[[1, 3, 2]], memory[layer][table])
        with pytest.raises(BadInput, match="there are 8"):
            hit.read_pages(0, given[0], [1, 2, 8], axis=axis)
        with pytest.raises(BadInput, match="2 pages, 3 blocks"):
            hit.read_pages(0, given[0], [1, 2], axis=axis)
        with pytest.raises(Mismatch, match="an axis more"):
            hit.read_pages(0, given[0][0], [1, 2, 3], axis=axis)
        with pytest.raises(Mismatch, match="float64"):
            hit.read_pages(0, np.zeros(given[0].shape), [1, 2, 3], axis=axis)


def test_tensors_of_types_that_only_torch_has(space: Space) -> None:
    layout = Layout("b", layers=2, heads=2, head_dim=4)  # bfloat16
    pool = KVPool(space, layout, BLOCK, capacity="1MiB")
    cache = torch.randn(layout.shape(8), dtype=torch.bfloat16)
    pool.put(torch.arange(8), cache)
    with pool.match(torch.arange(8)) as hit:
        out = torch.empty_like(cache)
        hit.read(out)
        assert torch.equal(out, cache)
        assert torch.equal(hit.layer(1).torch(1), cache[1][:, 4:])
        assert torch.equal(hit.layer(1).torch(-2), cache[1][:, :4])
        assert hit.layer(1)[1].dtype == np.uint16


def test_latent_attention_has_one_row_a_token(space: Space) -> None:
    layout = Layout("mla", layers=2, heads=1, head_dim=12, dtype="float32", latent=True)
    pool = KVPool(space, layout, BLOCK, capacity="1MiB")
    cache = np.random.default_rng(1).random(layout.shape(8)).astype(np.float32)
    pool.put(np.arange(8), list(cache))
    with pool.match(np.arange(8)) as hit:
        assert np.array_equal(hit.read(), cache)
        assert hit.layer(0)[0].shape == (4, 12)


def test_what_matched_stays_until_it_is_released(pool: KVPool) -> None:
    put(pool, [1, 2, 3])
    hit = pool.match(tokens_of([1, 2, 3]))
    view = hit.layer(1)[2]
    before = view.copy()
    for number in range(40):
        put(pool, [50 + number] * 10)
    assert check_hit(hit, [1, 2, 3]) == 3
    hit.release()
    hit.release()
    pool.clear()
    assert np.array_equal(view, before)  # a view holds as much
    del view
    gc.collect()
    pool.clear()
    assert pool.stats()["blocks"] == 0


def test_a_pool_outlives_its_worker(space: Space) -> None:
    with small_pool(space) as first:
        put(first, [1, 2])
    with small_pool(space) as second:
        assert look(second, [1, 2]) == 2


def test_workers_that_start_at_once_share_one_pool(home: Path) -> None:
    with Space.create("shelf", "64MiB"), contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer("forkserver")) for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.start(make_and_put, number)
        assert len({peer.finish() for peer in peers}) == 1
        assert [peer.call(look_in, other) for peer in peers for other in range(4)] == [1] * 16


def test_drafts_are_filled_layer_by_layer(pool: KVPool) -> None:
    path = [1, 2, 3]
    put(pool, path[:1])
    cache = cache_of(path)
    with pool.draft(tokens_of(path)) as draft:
        assert (draft.start, draft.stop) == (BLOCK, 3 * BLOCK)
        draft.put_layer(0, cache[0])
        assert look(pool, path) == 1
        draft.put_layer(1, cache[1][:, BLOCK:], start=BLOCK)
    assert draft.stored == Stored(3, 1, 2, 0)
    assert look(pool, path) == 3


def test_a_draft_that_fails_leaves_nothing(pool: KVPool) -> None:
    free = pool.stats()["free_blocks"]
    with contextlib.suppress(RuntimeError), pool.draft(tokens_of([1, 2])) as draft:
        draft.put_layer(0, cache_of([1, 2])[0])
        raise RuntimeError
    draft = pool.draft(tokens_of([1, 2]))
    del draft
    gc.collect()
    assert pool.stats()["free_blocks"] == free
    assert look(pool, [1, 2]) == 0


def test_two_writers_of_one_block_end_with_one_copy(pool: KVPool) -> None:
    path = [1, 2]
    with pool.draft(tokens_of(path)) as one, pool.draft(tokens_of(path)) as other:
        for draft in (one, other):
            for layer in range(2):
                draft.put_layer(layer, cache_of(path)[layer])
    assert one.stored is not None
    assert other.stored is not None
    assert sorted([one.stored.stored, other.stored.stored]) == [0, 2]
    assert pool.stats()["blocks"] == 2


def test_put_from_a_token_on(pool: KVPool) -> None:
    put(pool, [1])
    assert pool.put(tokens_of([1, 2]), cache_of([1, 2])[:, :, BLOCK:], start=BLOCK) == Stored(2, 1, 1, 0)
    assert look(pool, [1, 2]) == 2


def test_batches_and_background_puts(pool: KVPool) -> None:
    done = pool.put_many([(tokens_of([1]), cache_of([1])), (tokens_of([2]), cache_of([2]))])
    assert [each.stored for each in done] == [1, 1]
    assert [len(hit) for hit in pool.match_many([tokens_of([1]), tokens_of([3])])] == [BLOCK, 0]
    assert pool.put_async(tokens_of([3]), cache_of([3])).result(10).stored == 1
    assert look(pool, [3]) == 1
    with pool.match(tokens_of([3])) as hit:
        outs = [np.empty(LAYOUT.layer_shape(BLOCK), np.int32) for _ in range(2)]
        waits = [hit.read_layer_async(layer, outs[layer]) for layer in range(2)]
        assert all(wait.result(10) is out for wait, out in zip(waits, outs, strict=True))
    assert np.array_equal(np.stack(outs), cache_of([3]))


def test_pinned_prompts_stay_whoever_puts(pool: KVPool) -> None:
    put(pool, [1, 2])
    assert pool.pin(tokens_of([1, 2, 3])) == 2 * BLOCK
    for number in range(30):
        put(pool, [40 + number] * 8)
    assert look(pool, [1, 2]) == 2
    assert pool.evict(tokens_of([1, 2])) == 0
    pool.unpin(tokens_of([1, 2, 3]))
    assert pool.evict(tokens_of([1, 2]), keep=1) == 1
    assert look(pool, [1, 2]) == 1
    pool.pin(tokens_of([1]))
    pool.clear()
    assert look(pool, [1]) == 0


def test_blocks_expire_and_are_renewed(pool: KVPool) -> None:
    put(pool, [1, 2], ttl=0.05)
    put(pool, [5], ttl=0.05)
    assert look(pool, [1, 2]) == 2
    time.sleep(0.06)
    assert look(pool, [1, 2]) == 0
    put(pool, [1, 2], ttl=60)
    assert look(pool, [1, 2]) == 2
    assert look(pool, [5]) == 0


def test_tenants_do_not_see_each_other(pool: KVPool) -> None:
    ours, theirs = pool.for_tenant("ours", b"secret"), pool.for_tenant("theirs", b"other", quota=3 * 512)
    put(ours, [1, 2])
    put(pool, [1])
    assert look(theirs, [1, 2]) == 0
    assert look(pool.for_tenant("ours", b"wrong salt"), [1, 2]) == 0
    assert look(ours, [1, 2]) == 2
    for number in range(5):
        assert put(theirs, [number, 7]).stored == 2
    assert pool.stats()["tenants"]["theirs"]["blocks"] <= 3
    assert put(theirs, [1, 2, 3, 4, 5]).declined == 2
    assert pool.clear(tenant="ours") == 2
    assert look(pool, [1]) == 1


def test_other_models_share_room_but_no_blocks(space: Space, pool: KVPool) -> None:
    put(pool, [1, 2])
    for other in (replace(LAYOUT, model="another"), replace(LAYOUT, adapter="lora"), replace(LAYOUT, ranks=2, rank=1)):
        with KVPool(space, other, BLOCK) as stranger:
            assert stranger.present(tokens_of([1, 2])) == 0
            assert stranger.stats()["blocks"] == 2


def test_the_first_of_some_plain_values_is_found(pool: KVPool) -> None:
    pool.put("b", b"some bytes")
    pool.put("c", b"other bytes")
    assert pool.first_of(["a", b"b", "c"]) == 1
    assert pool.first_of(name for name in ("c", "b")) == 0
    assert pool.first_of(["a", "d"]) is pool.first_of([]) is None


def test_plain_values(pool: KVPool) -> None:
    value = np.random.default_rng(1).bytes(2000)  # four blocks
    assert pool.put("key", value) == Stored(4, 0, 4, 0)
    assert pool.put("key", b"another") == Stored(1, 1, 0, 0)
    assert pool.get("key") == value
    buffer = bytearray(3000)
    assert pool.get_into("key", buffer) == 2000
    assert buffer[:2000] == value
    assert pool.get_into("no such", buffer) is None
    assert pool.get(b"no such") is None
    assert pool.contains("key")
    assert pool.put(b"empty", b"").stored == 1
    assert pool.get("empty") == b""
    assert pool.evict("key") == 4
    assert not pool.contains("key")
    assert pool.put("key", torch.arange(5)).stored == 1
    assert pool.get("key") == np.arange(5).tobytes()
    assert pool.put("large", bytes(100_000)).declined > 0
    assert pool.get("large") is None


def test_tokens_are_compared_where_asked(space: Space) -> None:
    with small_pool(space, verify=True) as pool:
        put(pool, [1, 2])
        assert look(pool, [1, 2]) == 2
        # a collision cannot be made; so what the pool says of its tokens is changed
        with pool.match(tokens_of([1, 2])) as hit:
            address = hit.block(0).ctypes.data
        tokens = np.repeat(np.array([2], np.uint32), BLOCK) * 100 + np.arange(BLOCK, dtype=np.uint32)
        memory: Any = shelf.memory_of(space, "kv")
        at = memory.tobytes().find(tokens.tobytes())
        assert 0 < at < address - memory.ctypes.data
        memory[at] ^= 1
        assert look(pool, [1, 2]) == 1
        memory[at] ^= 1
        assert_sound(pool)


def test_a_read_only_space_is_matched_and_not_changed(space: Space, pool: KVPool) -> None:
    put(pool, [1, 2])
    assert in_fresh_process(read_only) == (2, True)


def test_statistics_count_what_everybody_did(pool: KVPool) -> None:
    put(pool, [1, 2])
    look(pool, [1, 2, 3])
    stats = pool.stats()
    assert (stats["queries"], stats["queried_blocks"], stats["hit_blocks"], stats["stored_blocks"]) == (1, 3, 2, 2)


def test_a_deleted_pool_says_so(space: Space) -> None:
    pool = small_pool(space)
    put(pool, [1])
    assert [entry.kind for entry in space.list()] == ["pool"]
    space.delete("kv")
    with pytest.raises(Closed, match="deleted"):
        pool.match([1])
    with small_pool(space) as again:
        assert look(again, [1]) == 0
    again.close()
    with pytest.raises(Closed):
        again.match([1])
    assert "closed" in repr(again)


def test_a_forked_process_goes_on_with_pool_and_hits(pool: KVPool) -> None:
    put(pool, [1, 2, 3])
    hit = pool.match(tokens_of([1, 2, 3]))
    draft = pool.draft(tokens_of([7]))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        good = False
        with contextlib.suppress(BaseException):
            os.close(write)
            os.read(read, 1)  # until the parent has let go of its own
            with contextlib.suppress(BadInput):
                draft.put_layer(0, cache_of([8])[0])  # its slot is the parent's
                os._exit(2)
            del draft
            good = check_hit(hit, [1, 2, 3]) == 3 and put(pool, [4]).stored == 1 and look(pool, [1, 2]) == 2
        os._exit(0 if good else 1)
    os.close(read)
    hit.release()
    assert pool.evict(tokens_of([1, 2, 3])) == 0  # the child holds it
    for layer in range(2):
        draft.put_layer(layer, cache_of([7])[layer])
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert draft.publish().stored == 1
    assert look(pool, [4]) == 1
    assert_sound(pool)  # which finds that the child is gone
    assert pool.evict(tokens_of([1, 2, 3])) == 3


def test_a_space_of_several_hosts_has_a_pool_on_each(url: str) -> None:
    with Space.open(url, contribute="16MiB") as space:
        with small_pool(space) as pool:
            put(pool, [1, 2])
            assert look(pool, [1, 2]) == 2
