"""The pool in virtual time: the real pool's own code, so that it finds what the real one finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space, _core
from openshelf.errors import BadInput
from openshelf.twin.serve import Engine, Pool, Requests, Scenario, hit_rate, made_of, pool_curve, serve
from tests.twin.serve.test_engine import shared, times

LAYOUT = Layout("trace", layers=1, heads=1, head_dim=4, dtype="float32")


def conversations(count: int, seed: int = 3) -> Requests:
    """Some that go on, in turns, among others that do not."""
    random, fresh, prompts = np.random.default_rng(seed), iter(range(1 << 30)), []
    open_: list[list[int]] = []
    for _ in range(count):
        if open_ and random.random() < 0.6:
            prompt = open_[int(random.integers(len(open_)))]
            prompt.append(next(fresh))
        else:
            prompt = [next(fresh) for _ in range(int(random.integers(1, 12)))]
            open_ = [*open_[-20:], prompt]
        prompts.append(list(prompt))
    ids = np.array([each for prompt in prompts for each in prompt], np.uint32)
    at = np.cumsum([0, *map(len, prompts)]).astype(np.uint64)
    lengths = np.array([512 * len(prompt) + 1 for prompt in prompts], np.uint32)
    return Requests(np.arange(count, dtype=np.float64), lengths, np.full(count, 2, np.uint32), at, ids)


def real_rate(space: Space, requests: Requests, room: int) -> float:
    cache = np.zeros(LAYOUT.shape(256), np.float32)
    found = 0
    with KVPool(
        space, LAYOUT, block_tokens=1, capacity=_core.KVCore.bytes_needed(LAYOUT.block_bytes(1), 1, room)
    ) as pool:
        for at in range(len(requests)):
            tokens = requests.ids[int(requests.ids_at[at]) : int(requests.ids_at[at + 1])]
            with pool.match(tokens) as hit:
                found += hit.blocks
            pool.put(tokens, cache[:, :, : len(tokens)])
    space.delete("kv")
    return found / len(requests.ids)


@pytest.mark.parametrize("room", [30, 100, 400])
def test_it_finds_what_the_real_pool_finds(home: Path, room: int) -> None:
    requests = conversations(600)
    with Space.create("real", dram="16MiB") as space:
        real = real_rate(space, requests, room)
    assert hit_rate(requests, room, block_bytes=LAYOUT.block_bytes(1)) == pytest.approx(real, abs=0.005)
    assert 0.05 < real < 0.9


def test_a_second_run_finds_the_same() -> None:
    requests = conversations(300)
    assert hit_rate(requests, 50, block_bytes=64) == hit_rate(requests, 50, block_bytes=64)


def test_without_ids_of_blocks_it_says_what_is_missing() -> None:
    with pytest.raises(BadInput, match="names no blocks"):
        hit_rate(made_of([0.0], [10], [1]), 10, block_bytes=64)


def test_kv_from_the_pool_is_waited_for_and_not_computed() -> None:
    pool = Pool(100, 100, 1 << 20, fast_s_token=1e-3, fetch_s=0.5)
    served = serve(shared(), Engine(1000, under_way=1), times(1.0), pool=pool)
    assert served.fetched_tokens.tolist() == [0, 1024]
    assert served.first_s[1] - served.arrives_s[1] == pytest.approx(1.024 + 0.5 + 1.0)
    assert served.pool["found"] == 2
    assert served.replicas[0]["tokens"] == 1100 + 76 + 2


def test_blocks_beyond_the_first_tier_come_from_the_second() -> None:
    slow = serve(
        shared(), Engine(1000, under_way=1), times(1.0), pool=Pool(100, 1, 1 << 20, fast_s_token=0.0, slow_s_token=1e-2)
    )
    assert slow.pool["slow"] == 1
    assert slow.first_s[1] - slow.arrives_s[1] == pytest.approx(5.12 + 1.0)


def test_a_larger_pool_finds_no_less_and_a_curve_says_so() -> None:
    scenario = Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=2)
    points = pool_curve(scenario, conversations(300), [0, 1 << 30, 1 << 36])
    assert points[0].pool_hit_rate == 0
    assert points[1].pool_hit_rate < points[2].pool_hit_rate
    assert points[2].hit_rate >= points[0].hit_rate
    assert points[2].fast_read_bytes > points[1].fast_read_bytes


def test_a_curve_keeps_the_split_of_prompts_and_decodes() -> None:
    scenario = Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=3, decode_replicas=1)
    points = pool_curve(scenario, conversations(100), [0, 1 << 34])
    for each in points:
        made = [replica["tokens"] for replica in each.served.replicas]
        assert len(made) == 3
        assert made[2] == 100  # of two tokens of an answer, the second is decoded there
    assert points[1].pool_hit_rate > 0


@pytest.mark.parametrize("parts", [0, -3, 3])
def test_more_pools_than_replicas_and_none_are_refused(parts: int) -> None:
    with pytest.raises(BadInput, match="pools of 2 replicas"):
        pool_curve(Scenario("dgx-h100-ib", "llama-3.1-8b", replicas=2), conversations(10), [1 << 30], parts)
