"""A KV pool on several hosts: each has its part; what one misses another has, once for all processes of a host."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openshelf import KVPool, Layout, _core
from openshelf.errors import OpenshelfError
from tests.kv import prompts
from tests.kv.prompts import assert_sound, cache_of, check_hit, small_pool, tokens_of
from tests.processes import State
from tests.space.hosts.harness import worker
from tests.space.hosts.harness.cluster import Cluster
from tests.space.hosts.harness.nursery import NurseryPeer

PROMPT = [1, 2, 3, 4, 5]
HANG_SECONDS = 5.0

SOAK = os.environ.get("OPENSHELF_SOAK") == "1"


def _enter(state: State, url: str, blocks: int = 64, tenant: str = "", salt: bytes = b"") -> None:
    worker.enter(state, url)
    state["pool"] = small_pool(state["space"], blocks, tenant=tenant, salt=salt)


def _put(state: State, path: list[int], ttl: float | None = None) -> tuple[int, ...]:
    return tuple(prompts.put(state["pool"], path, ttl=ttl))


def _look(state: State, path: list[int]) -> int:
    return prompts.look(state["pool"], path)


def _facts(state: State) -> dict[str, Any]:
    assert_sound(state["pool"])
    return dict(state["pool"].stats())


def _call(state: State, name: str, *given: Any) -> Any:
    return getattr(state["pool"], name)(*given)


def _evict(state: State, path: list[int], keep: int) -> int:
    return int(state["pool"].evict(tokens_of(path), keep=keep * prompts.BLOCK))


def _meet(cluster: Cluster, *options: Any) -> list[NurseryPeer]:
    peers = [host.peer() for host in cluster.hosts]
    for host, peer in zip(cluster.hosts, peers, strict=True):
        peer.call(_enter, host.url(), *options)
    return peers


@pytest.fixture(params=["loopback", "namespaces"])
def pair(request: pytest.FixtureRequest) -> tuple[Cluster, NurseryPeer, NurseryPeer]:
    cluster: Cluster = request.getfixturevalue("loopback" if request.param == "loopback" else "two")
    one, two = _meet(cluster)
    return cluster, one, two


def test_a_prefix_is_fetched_once_for_all_processes_of_a_host(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    cluster, one, two = pair
    one.call(_put, PROMPT)
    assert two.call(_look, [1, 2, 9]) == 2
    assert two.call(_look, [*PROMPT, 6]) == 5
    third = cluster[1].peer()
    third.call(_enter, cluster[1].url())
    assert third.call(_look, PROMPT) == 5
    facts = two.call(_facts)
    assert (facts["fetched_blocks"], facts["blocks"]) == (5, 5)
    assert one.call(_facts)["fetched_blocks"] == 0


def test_asking_whether_it_is_there_fetches_nothing(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    one.call(_put, PROMPT)
    tokens = tokens_of(PROMPT)
    assert two.call(_call, "present", tokens_of([1, 2, 9])) == 2 * prompts.BLOCK
    assert two.call(_call, "contains", tokens)
    assert not two.call(_call, "contains", tokens_of([1, 2, 9]))
    assert two.call(_facts)["blocks"] == 0


def test_what_is_half_there_is_completed(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    one.call(_put, PROMPT)
    two.call(_put, PROMPT[:2])
    assert two.call(_look, PROMPT) == 5
    assert two.call(_facts)["fetched_blocks"] == 3


def test_plain_values_are_found_on_any_host(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    rows = {"empty": b"", "short": b"abc", "long": bytes(range(256)) * 11}
    for key, value in rows.items():
        one.call(_call, "put", key, value)
    for key, value in rows.items():
        assert two.call(_call, "contains", key)
        assert two.call(_call, "get", key) == value
        assert two.call(_call, "get", key) == value
    assert two.call(_call, "get", "none") is None
    assert two.call(_facts)["fetched_blocks"] == one.call(_facts)["blocks"]
    assert one.call(_call, "evict", "long") > 5
    assert not two.call(_call, "contains", "long")


def test_evict_and_clear_are_for_all_hosts(pair: tuple[Cluster, NurseryPeer, NurseryPeer]) -> None:
    _, one, two = pair
    one.call(_put, PROMPT)
    assert two.call(_look, PROMPT) == 5
    assert two.call(_evict, PROMPT, 3) == 4
    assert two.call(_look, PROMPT) == 3
    assert one.call(_call, "clear") == 6
    assert two.call(_look, PROMPT) == 0
    assert two.call(_facts)["blocks"] == one.call(_facts)["blocks"] == 0


def test_tenants_are_apart_on_all_hosts_and_cleared_together(loopback: Cluster) -> None:
    one, two = _meet(loopback, 64, "acme", b"s")
    other = loopback[1].peer()
    other.call(_enter, loopback[1].url(), 64, "other", b"t")
    one.call(_put, PROMPT)
    assert other.call(_look, PROMPT) == 0
    assert two.call(_look, PROMPT) == 5
    other.call(_put, [7])
    assert two.call(_call, "clear", "acme") == 10
    assert one.call(_look, PROMPT) == 0
    assert other.call(_look, [7]) == 1


def test_what_expires_expires_where_it_was_fetched_to(loopback: Cluster) -> None:
    one, two = _meet(loopback)
    one.call(_put, PROMPT, 1.5)
    assert two.call(_look, PROMPT) == 5
    time.sleep(1.6)
    assert two.call(_look, PROMPT) == 0


def test_what_was_renewed_elsewhere_is_fetched_again(loopback: Cluster) -> None:
    one, two = _meet(loopback)
    one.call(_put, PROMPT[:2])
    one.call(_put, PROMPT, 1.0)
    assert two.call(_look, PROMPT) == 5
    time.sleep(1.1)
    assert one.call(_look, PROMPT) == two.call(_look, PROMPT) == 2  # these two were for ever
    one.call(_put, PROMPT, 100.0)
    assert one.call(_look, PROMPT) == two.call(_look, PROMPT) == 5


def _enter_raw(state: State, url: str) -> None:
    worker.enter(state, url)
    state["pool"] = KVPool(state["space"], Layout.raw(64), 1, capacity="40MiB")


def test_a_value_of_very_many_blocks_is_fetched(loopback: Cluster) -> None:
    one, two = loopback[0].peer(), loopback[1].peer()
    one.call(_enter_raw, loopback[0].url())
    two.call(_enter_raw, loopback[1].url())
    value = np.random.default_rng(3).bytes(66_500 * 64 - 7)
    one.call(_call, "put", "large", value)
    assert two.call(_call, "get", "large") == value


def _match_at(state: State, path: list[int], moment_ns: int) -> int:
    worker.wait_until(moment_ns)
    return prompts.look(state["pool"], path)


def test_two_processes_of_a_host_that_want_the_same_at_once_fetch_it_once(loopback: Cluster) -> None:
    one, two = _meet(loopback, 200)
    three = loopback[1].peer()
    three.call(_enter, loopback[1].url(), 200)
    for number in range(1, 21):
        path = [number] * 8
        one.call(_put, path)
        moment = time.monotonic_ns() + 20_000_000
        for peer in (two, three):
            peer.start(_match_at, path, moment)
        assert (two.finish(), three.finish()) == (8, 8)
    assert two.call(_facts)["fetched_blocks"] == 20 * 8


def _delete(state: State, everywhere: bool) -> None:
    state.pop("pool").close()
    gc.collect()
    if everywhere:
        state["space"].delete("kv")
    else:  # as if the others were cut off
        assert state["space"]._native.core.remove("kv")
    state["space"]._native.core.collect()


def _free(state: State) -> int:
    return int(state["space"]._native.core.stats()["free"])


def _enter_and_count_free(state: State, url: str) -> int:
    worker.enter(state, url)
    free = _free(state)
    state["pool"] = small_pool(state["space"], 5000)
    assert _free(state) < free
    return free


def test_a_deleted_pool_takes_no_room(loopback: Cluster) -> None:
    one, two = loopback[0].peer(), loopback[1].peer()
    free = one.call(_enter_and_count_free, loopback[0].url())
    two.call(_enter, loopback[1].url())
    one.call(_put, PROMPT)
    assert two.call(_look, PROMPT) == 5
    one.call(_delete, True)
    assert one.call(_free) == free


def _write_over(state: State) -> None:
    """Other arrays where a pool was: its head and entries as they were, its blocks written."""
    core = state["space"]._native.core
    state["kept"] = core.make(20 << 10, 3, 0, (20 << 10,), "", "a", False)
    state["space"].full("b", 16 << 20, 0xEE, "uint8")


def _make_again(state: State) -> None:
    """The same prompt in another pool in the same place, its blocks in another order."""
    state["pool"] = small_pool(state["space"])
    for path in ([9, 9, 9], PROMPT):
        prompts.put(state["pool"], path)
    state["pool"].clear()
    prompts.put(state["pool"], PROMPT)


@pytest.mark.parametrize("then", [_write_over, _make_again])
def test_what_is_no_pool_any_more_is_not_read(loopback: Cluster, then: Callable[[State], None]) -> None:
    one, two = _meet(loopback)
    one.call(_put, PROMPT)
    assert two.call(_sight, PROMPT) == 5
    one.call(_delete, False)
    one.call(then)
    assert two.call(_fetch, PROMPT) == 0


def _bad_seek(state: State, first: int, count: int) -> str:
    pool, (peer,) = state["pool"], state["space"]._native.peers
    keys = _core.kv_keys(pool._root, tokens_of(PROMPT[:1]), prompts.BLOCK) * count
    try:
        return str(len(_core.kv_seek(peer.remote, pool.name, 0, first, 0, keys)))
    except OpenshelfError as error:
        return type(error).__name__


def test_look_ups_that_make_no_sense_are_refused_and_harm_nobody(loopback: Cluster) -> None:
    one, two = _meet(loopback)
    one.call(_put, PROMPT)
    keepers = loopback[0].keepers()
    for first, count in ((2**64 - 1, 2), (2**64 - 1, 1), (2**32, 1), (65, 1)):
        assert two.call(_bad_seek, first, count) == "BadInput"
    assert two.call(_bad_seek, 1, 1) == "BadInput"
    assert loopback[0].keepers() == keepers
    assert two.call(_look, PROMPT) == 5


def _stop_waiting(state: State, path: list[int]) -> str:
    """A signal that raises while this waits for its turn."""
    pool = state["pool"]
    key = pool._core.draft_to_fetch(pool._root, tokens_of(path), 0).keys()[:32]
    held = _core.kv_take_turn(pool._core, key, 1.0)
    assert held

    def give_up(*_: Any) -> None:
        held.drop()  # so that it is granted in this very moment
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        pool.match(tokens_of(path))
    except InterruptedError:
        return "interrupted"
    finally:
        signal.signal(signal.SIGALRM, before)
    return "matched"


def test_a_turn_is_given_back_whatever_signal_comes(loopback: Cluster) -> None:
    one, two = _meet(loopback)
    one.call(_put, PROMPT)
    three = loopback[1].peer()
    three.call(_enter, loopback[1].url())
    assert two.call(_stop_waiting, PROMPT) == "interrupted"
    assert three.call(_look, PROMPT) == 5


def _clear_many(state: State) -> int:
    return sum(state["pool"].clear(f"nobody-{number}") for number in range(1100))


def test_clearing_unknown_tenants_makes_none(loopback: Cluster) -> None:
    one, two = _meet(loopback)
    one.call(_put, PROMPT)
    assert two.call(_clear_many) == 0
    assert set(one.call(_facts)["tenants"]) == {""}


def test_the_longest_of_several_hosts_is_fetched(three: Cluster) -> None:
    one, two, third = _meet(three)
    one.call(_put, PROMPT[:2])
    two.call(_put, PROMPT)
    assert third.call(_look, [*PROMPT, 6]) == 5
    third.call(_put, [*PROMPT, 6])
    assert one.call(_look, [*PROMPT, 6]) == 6


def test_no_room_here_is_a_shorter_match(loopback: Cluster) -> None:
    one, two = loopback[0].peer(), loopback[1].peer()
    one.call(_enter, loopback[0].url())
    two.call(_enter, loopback[1].url(), 3)
    one.call(_put, PROMPT)
    assert two.call(_look, PROMPT) == 3
    assert two.call(_look, [8]) == 0


def _enter_other(state: State, url: str) -> None:
    worker.enter(state, url)
    other = Layout("other", layers=2, heads=2, head_dim=8, dtype="int32")
    state["pool"] = KVPool(state["space"], other, prompts.BLOCK, capacity="1MiB")


def test_a_pool_of_another_model_by_the_same_name_is_a_miss(loopback: Cluster) -> None:
    one, two = loopback[0].peer(), loopback[1].peer()
    one.call(_enter_other, loopback[0].url())
    two.call(_enter, loopback[1].url())
    two.call(_put, PROMPT)
    assert one.call(_call, "present", tokens_of(PROMPT)) == 0
    assert two.call(_look, [3]) == 0


def _sight(state: State, path: list[int]) -> int:
    """What the other host says that it has, to be fetched later."""
    pool, (peer,) = state["pool"], state["space"]._native.peers
    keys = _core.kv_keys(pool._root, tokens_of(path), prompts.BLOCK)
    state["sight"] = peer.remote, _core.kv_seek(peer.remote, pool.name, 0, 0, 0, keys)
    return len(state["sight"][1])


def _fetch(state: State, path: list[int]) -> int:
    pool = state["pool"]
    draft = pool._core.draft_to_fetch(pool._root, tokens_of(path), pool._tenant)
    pool._others._fetch(draft, *state["sight"])
    return int(draft.next)


@pytest.mark.parametrize("then", [[], [[8, 7, 6, 5, 4]], [[8, 7, 6, 5, 4], PROMPT]])
def test_what_was_evicted_since_it_was_seen_is_not_taken(loopback: Cluster, then: list[list[int]]) -> None:
    one, two = _meet(loopback, len(PROMPT))
    one.call(_put, PROMPT)
    assert two.call(_sight, PROMPT) == 5
    assert two.call(_fetch, PROMPT) == 5
    two.call(_call, "clear")
    one.call(_put, PROMPT)
    assert two.call(_sight, PROMPT) == 5
    one.call(_evict, PROMPT, 0)
    for path in then:
        one.call(_put, path)
    assert two.call(_fetch, PROMPT) == 0
    assert two.call(_facts)["blocks"] == 0
    assert two.call(_look, PROMPT) == (5 if then[-1:] == [PROMPT] else 0)


@pytest.mark.parametrize("how", ["keeper", "host", "cut"])
def test_a_lost_host_is_a_miss_and_serving_goes_on(two: Cluster, how: str) -> None:
    one, other = _meet(two)
    one.call(_put, PROMPT)
    assert other.call(_look, PROMPT[:2]) == 2
    if how == "keeper":
        two[0].kill_keeper()
    elif how == "host":
        two[0].kill(silent=True)
    else:
        two[0].cut()
    start = time.monotonic()
    found = other.call(_look, PROMPT)
    assert time.monotonic() - start < HANG_SECONDS
    assert found in ((2, 5) if how == "keeper" else (2,))
    assert other.call(_put, PROMPT)[0] == 5
    assert other.call(_look, PROMPT) == 5
    if how == "keeper":
        assert other.call(_call, "present", tokens_of(PROMPT)) == 5 * prompts.BLOCK
        one.call(_put, [6])
        deadline = time.monotonic() + 10
        while not other.call(_look, [6]):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _churn(state: State, seed: int, rounds: int) -> int:
    """Prompts of a small tree, in a pool that has no room for all of it; every byte is compared."""
    chance, pool, found = random.Random(seed), state["pool"], 0
    for _ in range(rounds):
        path = [chance.randrange(1, 4) for _ in range(6)]
        with pool.match(tokens_of(path)) as hit:
            found += check_hit(hit, path)
            if chance.random() < 0.4:
                pool.put(tokens_of(path), cache_of(path))
        if chance.random() < 0.1:
            pool.evict(tokens_of(path), keep=chance.randrange(4) * prompts.BLOCK)
        key = str(chance.randrange(40))
        expected = np.random.default_rng(int(key)).bytes(100 * int(key))
        value = pool.get(key)
        assert value in (None, expected)
        if value is None and chance.random() < 0.5:
            pool.put(key, expected)
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_no_wrong_byte_while_blocks_come_and_go_on_three_hosts(three: Cluster, killed: bool) -> None:
    peers = _meet(three, 100)
    second = three[0].peer()
    second.call(_enter, three[0].url(), 100)
    peers.append(second)
    for number, peer in enumerate(peers):
        peer.start(_churn, number, 600 if SOAK else 300)
    if killed:
        chance = random.Random(5)
        for _ in range(4):
            time.sleep(0.5)
            three[chance.randrange(3)].kill_keeper()
    for peer in peers:
        assert peer.finish() > 100
    for peer in peers:
        peer.call(_facts)
    assert sum(peer.call(_facts)["fetched_blocks"] for peer in peers[:3]) > 100
