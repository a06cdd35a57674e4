"""Static placement: never two that live at once in one place, and as little memory as can be."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.errors import BadInput
from openshelf.space import Placement, place

Lifetimes = list[tuple[int, int, int]]

SIZES = st.integers(0, 5000) | st.sampled_from([0, 1, 512, 1024, 4096])
LIFETIMES = st.lists(
    st.tuples(SIZES, st.integers(-20, 20), st.integers(0, 15)).map(lambda one: (one[0], one[1], one[1] + one[2])),
    max_size=40,
)


def check(lifetimes: Lifetimes, placement: Placement) -> None:
    """By brute force: every pair, every time."""
    assert placement.sizes == tuple(size for size, _, _ in lifetimes)
    for offset in placement.offsets:
        assert offset >= 0
        assert offset % placement.alignment == 0
    placed = list(zip(placement.offsets, lifetimes, strict=True))
    for (at, (size, first, last)), (other_at, (other_size, other_first, other_last)) in itertools.combinations(
        placed, 2
    ):
        if first <= other_last and other_first <= last:
            assert at + size <= other_at or other_at + other_size <= at or not size or not other_size
    step = placement.alignment
    live = [
        sum(-(-size // step) * step for size, first, last in lifetimes if first <= now <= last)
        for now in {first for _, first, _ in lifetimes}
    ]
    assert placement.live_peak == max(live, default=0)
    ends = [at + -(-size // step) * step for at, (size, _, _) in placed if size]
    assert placement.live_peak <= placement.peak == max(ends, default=0)


@given(LIFETIMES, st.sampled_from([1, 64, 512, 4096]))
@settings(max_examples=300, deadline=None)
def test_nothing_that_lives_at_once_overlaps(lifetimes: Lifetimes, alignment: int) -> None:
    check(lifetimes, place(lifetimes, alignment))


@given(LIFETIMES, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_equal_inputs_give_equal_placements(lifetimes: Lifetimes, rng: Any) -> None:
    assert place(lifetimes) == place(list(lifetimes))


def test_storages_share_memory_only_one_after_the_other() -> None:
    assert place([(1000, 0, 1), (1000, 2, 3)]).offsets == (0, 0)
    assert sorted(place([(1000, 0, 1), (1000, 1, 3)]).offsets) == [0, 1024]  # `last` is included
    placement = place([(1000, 0, 1), (1000, 2, 3)], alignment=1)
    assert (placement.peak, placement.live_peak, placement.fragmentation) == (1000, 1000, 0.0)


def test_nothing_needs_no_memory() -> None:
    assert place([]) == Placement((), (), 0, 0, 512)
    assert place([(0, 0, 5)]).peak == 0
    assert place([]).fragmentation == 0.0


def test_small_sets_mostly_meet_the_bound() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(200):
        lifetimes = [
            (rng.randint(1, 9) * 512, first := rng.randint(0, 12), first + rng.randint(0, 5)) for _ in range(14)
        ]
        placement = place(lifetimes)
        check(lifetimes, placement)
        found += placement.peak == placement.live_peak
    assert found >= 170


@pytest.mark.parametrize(
    ("lifetimes", "says"),
    [
        ([(1, 0, 0), (-1, 0, 0)], "lifetime 1 has size >= 0"),
        ([(1, 5, 4)], "first <= last"),
        ([(1, 5)], r"lifetime 0 is \(size, first, last\)"),
        ([(1.5, 0, 0)], "three integers"),
        ([(1 << 60, 0, 0)], "beyond 64 bits"),
        ([7], "three integers"),
    ],
)
def test_what_is_no_lifetime_is_refused(lifetimes: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        place(lifetimes)


def test_an_alignment_is_positive() -> None:
    with pytest.raises(BadInput, match="1 or more"):
        place([], alignment=0)


def layered(layers: int = 23, seed: int = 0) -> Lifetimes:
    """A training step: weights streamed in for both passes, activations kept from one to the other, temporaries,
    gradients that are sunk as they come."""
    rng = random.Random(seed)
    hidden = rng.choice([1024, 2048, 4096]) * 256
    weights = [12 * hidden, 4 * hidden, 16 * hidden, 16 * hidden]
    found: Lifetimes = []
    kept: list[tuple[int, int]] = []
    now = 0
    for _ in range(layers):
        found += [(size, max(0, now - 4), now + 8) for size in weights]
        for _ in range(10):
            kept.append((rng.choice([hidden, hidden, 4 * hidden, 2 * hidden, hidden // 8]), now))
            found.append((rng.choice([hidden, 2 * hidden, 4 * hidden]), now, now + 1))
            now += 1
    for _ in range(layers):
        found += [(size, now - 4, now + 10) for size in weights]
        for _ in range(10):
            size, first = kept.pop()
            found.append((size, first, now))
            found.append((rng.choice([hidden, 2 * hidden, 4 * hidden]), now, now + 1))
            now += 1
        found += [(size, now - 6, now + 2) for size in weights]
    found += [(4 * hidden, 0, now)] * 21  # embeddings and optimizer words that stay
    return found


def test_a_training_step_of_987_storages_needs_hardly_more_than_what_lives_at_once() -> None:
    found, durations_s = [], []
    for seed in range(6):
        lifetimes = layered(seed=seed)
        assert len(lifetimes) == 987
        start = time.perf_counter()
        placement = place(lifetimes)
        durations_s.append(time.perf_counter() - start)
        check(lifetimes, placement)
        found.append(placement.fragmentation)
    print("987 storages, over the live peak:", *(f"{one:.2%}" for one in found), f"in {min(durations_s) * 1000:.0f} ms")
    assert found.count(0.0) >= 4
    assert max(found) < 0.005
