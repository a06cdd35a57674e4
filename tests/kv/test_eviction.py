"""What a full pool keeps, against what simple policies would: small made-up traces (bench/traffic), replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from openshelf import Space


@pytest.mark.parametrize(
    ("family", "seed"), [("retrieval", 1), ("retrieval", 2), ("retrieval", 3), ("scans", 2), ("chat", 1), ("chat", 3)]
)
def test_pool_finds_as_much_as_the_best_simple_policy(
    space: Space, family: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    from traffic import kv_families, kv_floor

    trace = kv_families.generate(family, seed, 8000)
    for share in (5, 10):  # a pool this small looks at all its leaves and blocks: nothing in it is drawn by lot
        room = kv_floor.distinct(trace) * share // 100
        ours, peers = kv_floor.alone(space, trace, room)[0], kv_floor.peer_rates(trace, room)
        assert ours >= max(peers.values()), f"{share} % room: {peers}"


def test_families_are_made_again_from_their_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    from traffic import kv_families

    for family in kv_families.FAMILIES:
        trace = kv_families.generate(family, 7, 2000)
        assert trace == kv_families.generate(family, 7, 2000) != kv_families.generate(family, 8, 2000)
        before: dict[int, int] = {}  # an id stands for a block and all before it
        for prompt in trace:
            for block, earlier in zip(prompt, [0, *prompt], strict=False):
                assert before.setdefault(block, earlier) == earlier
