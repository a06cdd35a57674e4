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
from openshelf.offload.capture.affine import Line, at, varies  # noqa: E402
from openshelf.offload.decoder.kv_tier import KVTier, grain  # noqa: E402
from openshelf.offload.decoder.model import Shape  # noqa: E402
from openshelf.offload.planner.resident import spread  # noqa: E402
from openshelf.offload.program.torch import arena_bytes  # noqa: E402

SHAPES = [Shape(2, 2, 16, torch.float32), Shape(2, 2, 48, torch.float32)]  # sectors of 64, and of 64 tokens in three
GRAIN = grain(SHAPES)
LONGEST = 3 * GRAIN
PIECES = st.lists(st.tuples(st.integers(1, 70), st.booleans(), st.integers(1, 3)), min_size=1, max_size=12)


@given(pieces=PIECES, home=st.sampled_from(["dram", "flash"]))
@settings(max_examples=25, deadline=None)
def test_what_was_appended_is_read_back(pieces: list[tuple[int, bool, int]], home: Any, tmp_path_factory: Any) -> None:
    arena = DeviceArena(sum(shape.rows * LONGEST * shape.token_bytes for shape in SHAPES))
    tier = KVTier(SHAPES, LONGEST, home, arena, Path(tmp_path_factory.getbasetemp()))
    whole = arena_bytes(arena)
    numbers = torch.Generator().manual_seed(len(pieces))
    told = [torch.empty(shape.rows, 0, shape.width) for shape in SHAPES]
    for tokens, stored, grains in pieces:
        if tier.past + tokens > LONGEST:
            break
        tier.room = max(grains * GRAIN, -(-(tier.past + tokens) // GRAIN) * GRAIN)
        whole.fill_(255)
        offset = 0
        for buffer, shape in enumerate(SHAPES):
            nbytes = shape.rows * tier.room * shape.token_bytes
            rows = whole[offset : offset + nbytes].view(torch.float32).view(shape.rows, tier.room, shape.width)
            tier.begin_read(buffer, offset)
            tier.wait(buffer)
            assert torch.equal(rows[:, : tier.past], told[buffer])
            new = torch.randn(shape.rows, tokens, shape.width, generator=numbers)
            rows[:, tier.past : tier.past + tokens] = new
            if stored:
                tier.begin_write(buffer, offset, tokens)
                tier.wait_written(buffer)
            else:
                tier.append(buffer, offset, tokens)
            told[buffer] = torch.cat([told[buffer], new], 1)
            offset += nbytes
        tier.past += tokens
    tier.close()


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
    value = {"a": [1, (Line(3, 2), "x")], "b": 4}
    assert varies(value)
    assert at(value, 5) == {"a": [1, (13, "x")], "b": 4}
    assert not varies(at(value, 5))
