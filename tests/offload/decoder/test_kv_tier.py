"""Keys and values below the arena: whatever was appended is read back, however long rows are in the arena."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from openshelf._core import DeviceArena  # noqa: E402
from openshelf.offload.capture.affine import Curve, at, varies  # noqa: E402
from openshelf.offload.decoder.kv_tier import KVTier  # noqa: E402
from openshelf.offload.decoder.state import State, grain  # noqa: E402
from openshelf.offload.planner.resident import spread  # noqa: E402
from openshelf.offload.program.torch import arena_bytes  # noqa: E402

FULL = State("keys", (2, 2, 1, 16), torch.float32, 2)  # sectors of 64 tokens
STATES = (
    FULL,
    State("wide", (2, 2, 1, 48), torch.float32, 2),  # of 64 tokens in three sectors
    State("window", (2, 1, 16), torch.float32, 1, window=70),  # at home in rows that begin anew
    State("fixed", (3, 5), torch.float32),
)
GRAIN = grain(STATES)
LONGEST, MOST = 5 * GRAIN, 70
PIECES = st.lists(
    st.tuples(st.integers(1, MOST), st.booleans(), st.integers(1, 3), st.booleans()), min_size=1, max_size=12
)


@given(pieces=PIECES, home=st.sampled_from(["dram", "flash"]))
@settings(max_examples=25, deadline=None)
def test_what_was_appended_is_read_back(
    pieces: list[tuple[int, bool, int, bool]], home: Any, tmp_path_factory: Any
) -> None:
    arena = DeviceArena(sum(state.rows * LONGEST * state.token_bytes for state in STATES if state.grows) + 4096)
    tier = KVTier(STATES, LONGEST, MOST, home, arena, Path(tmp_path_factory.getbasetemp()))
    whole = arena_bytes(arena)
    numbers = torch.Generator().manual_seed(len(pieces))
    told = [torch.empty(state.rows, 0, state.width) for state in STATES]
    past = 0
    for tokens, stored, grains, fails in pieces:
        if past + tokens > LONGEST:
            break
        room = max(grains * GRAIN, -(-(past + tokens) // GRAIN) * GRAIN)
        firsts = [state.first(past) if state.grows else 0 for state in STATES]
        tier.begin(past, firsts, [state.held(room, tokens) for state in STATES])
        whole.fill_(255)
        offset = 0
        for buffer, state in enumerate(STATES):
            held, first = (tier.rooms[buffer], firsts[buffer]) if state.grows else (1, 0)
            nbytes = state.rows * held * state.token_bytes
            rows = whole[offset : offset + nbytes].view(torch.float32).view(state.rows, held, state.width)
            new = torch.randn(state.rows, tokens if state.grows else 1, state.width, generator=numbers)
            if past:
                tier.begin_read(buffer, offset)
                tier.wait(buffer)
                there = told[buffer][:, first:past] if state.grows else told[buffer]
                assert torch.equal(rows[:, : there.shape[1]], there), state.name
            rows[:, past - first if state.grows else 0 :][:, : new.shape[1]] = new
            if stored:
                tier.begin_write(buffer, offset, tokens)
                tier.wait_written(buffer)
            else:
                tier.append(buffer, offset, tokens)
            if not fails or home == "flash":
                told[buffer] = torch.cat([told[buffer], new], 1) if state.grows else new
            offset += -(-nbytes // 4096) * 4096
        if fails and home == "dram":
            assert tier.abandon()  # the tokens of before it are there, all else is as if it had not run
            continue
        tier.commit()
        past += tokens
    tier.close()


def test_window_takes_no_more_room_than_its_tokens() -> None:
    window = STATES[2]
    assert FULL.held(100 * GRAIN, 1) == 100 * GRAIN
    assert window.held(100 * GRAIN, 1) == window.up(70 + window.sector_tokens + 1) < 4 * GRAIN
    assert window.first(20) == window.first(70) == 0
    assert 0 < window.first(40 * GRAIN) <= 40 * GRAIN - 70


@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 30).map(lambda count: [5] * count)
    ).map(lambda sizes: [size << 12 for size in sizes]),
    room=st.integers(0, 200).map(lambda room: room << 12),
)
def test_what_stays_fits_and_is_spread(sizes: list[int], room: int) -> None:
    items = [(number,) for number in range(len(sizes))]
    stays = spread(items, sizes, room)
    assert sum(sizes[s] for (s,) in stays) <= room
    assert stays == [item for item in items if item in stays]
    if sum(sizes) <= room:
        assert stays == items
    elif len(set(sizes)) == 1:
        assert len(stays) == room // sizes[0]
        gaps = [after - before for (before,), (after,) in itertools.pairwise(stays)]
        assert not gaps or max(gaps) - min(gaps) <= 1


def test_lines_are_found_at_any_depth() -> None:
    value = {"a": [1, (Curve(3, 2), "x")], "b": 4}
    assert varies(value)
    assert at(value, 5) == {"a": [1, (13, "x")], "b": 4}
    assert not varies(at(value, 5))
