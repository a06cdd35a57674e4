"""Bad input: an error that says what was expected, what came and what to do; or a miss. And serving goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space
from openshelf.errors import BadInput, Closed, Mismatch, NameTaken, NoRoom, NotPermitted, OpenshelfError, OutOfRange
from tests.kv.prompts import BLOCK, LAYOUT, cache_of, look, put, tokens_of
from tests.space import shelf


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([1.5, 2.5], BadInput, "integers"),
        (np.array([1.0, 2.0]), Mismatch, "float64"),
        (np.zeros((2, 3), int), Mismatch, r"\(2, 3\)"),
        (["one"], BadInput, "'one' at position 0"),
        (np.array([-1] * 8), BadInput, "-1"),
        ([1 << 40] * 8, BadInput, "1099511627776"),
        (object(), Mismatch, "integers"),
        (np.array(["a"]), Mismatch, "integers"),
    ],
)
def test_tokens_that_are_none(pool: KVPool, tokens: Any, error: type[Exception], text: str) -> None:
    for call in (
        pool.match,
        pool.present,
        pool.evict,
        pool.pin,
        pool.draft,
        lambda bad: pool.put(bad, cache_of([1, 2])),
    ):
        with pytest.raises(error, match=text):
            call(tokens)
    put(pool, [1])
    assert look(pool, [1]) == 1


def test_tokens_in_any_integer_form_are_the_same(pool: KVPool) -> None:
    put(pool, [1, 2])
    tokens = tokens_of([1, 2])
    for same in (
        tokens.tolist(),
        tuple(tokens.tolist()),
        tokens.astype(">i8"),
        tokens.astype("int16"),
        np.repeat(tokens, 2)[::2],
    ):
        assert pool.present(same) == 2 * BLOCK


@pytest.mark.parametrize(
    ("cache", "text"),
    [
        (cache_of([1, 2]).astype("float32"), "float32.*int32"),
        (cache_of([1]), r"\(2, 4, 2, 4\).*\(2, 8, 2, 4\)"),
        (cache_of([1, 2])[:1], "2 layers.*1"),
        (cache_of([1, 2])[..., :2], "heads of 4"),
        (list(cache_of([1, 2]))[:1], "2 layers, got 1"),
        ([cache_of([1, 2])[0], "text"], "layer 1.*str"),
        ([(cache_of([1, 2])[0][0],) * 3] * 2, "pair"),
        (b"bytes", "2 layers"),
        (None, "NoneType"),
    ],
)
def test_cache_of_another_type_or_shape(pool: KVPool, cache: Any, text: str) -> None:
    with pytest.raises(Mismatch, match=text):
        pool.put(tokens_of([1, 2]), cache)
    assert look(pool, [1, 2]) == 0


def test_outputs_of_another_type_or_shape(pool: KVPool) -> None:
    put(pool, [1, 2])
    with pool.match(tokens_of([1, 2])) as hit:
        with pytest.raises(Mismatch, match="float64"):
            hit.read_layer(0, np.empty(LAYOUT.layer_shape(8)))
        with pytest.raises(Mismatch, match="shape"):
            hit.read_layer(0, np.empty(LAYOUT.layer_shape(4), np.int32))
        with pytest.raises(Mismatch, match="contiguous"):
            hit.read_layer(0, np.empty((2, 8, 4, 2), np.int32).transpose(0, 1, 3, 2))
        with pytest.raises(Mismatch, match="cannot be written"):
            hit.read_layer(0, _frozen())
        with pytest.raises(OutOfRange, match="2 layers"):
            hit.layer(2)
        with pytest.raises(Mismatch, match="a layer's number must be an integer"):
            hit.layer("0")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="block of 4"):
            hit.read(start=3)
        with pytest.raises(BadInput, match="beyond"):
            hit.read(start=12)
    with pytest.raises(Closed, match="released"):
        hit.layer(0)


def _frozen() -> Any:
    array = np.empty(LAYOUT.layer_shape(8), np.int32)
    array.flags.writeable = False
    return array


def test_a_pool_of_other_blocks_is_refused_by_name(space: Space, pool: KVPool) -> None:
    with pytest.raises(Mismatch, match=r"'kv' has blocks of 4 tokens and 512 bytes.*another name="):
        KVPool(space, replace(LAYOUT, layers=3), BLOCK)
    with pytest.raises(Mismatch, match="8 tokens"):
        KVPool(space, LAYOUT, 8)
    KVPool(space, replace(LAYOUT, layers=3), BLOCK, name="other", capacity="1MiB").close()
    space.put("array", np.zeros(10000))
    with pytest.raises(NameTaken, match="name="):
        KVPool(space, LAYOUT, BLOCK, name="array")


def test_no_room_for_one_block(space: Space) -> None:
    huge = Layout("huge", layers=80, heads=128, head_dim=128, dtype="float32")
    with pytest.raises(NoRoom, match=r"one block of .*capacity="):
        KVPool(space, huge)
    with pytest.raises(NoRoom, match="one block"):
        KVPool(space, LAYOUT, BLOCK, capacity="64KiB")


def test_a_prompt_longer_than_the_pool_is_declined_in_part(space: Space) -> None:
    with KVPool(space, LAYOUT, BLOCK, capacity="128KiB", name="tiny") as pool:
        capacity = pool.stats()["capacity_blocks"]
        done = put(pool, [1] * (capacity + 5))
        assert (done.stored, done.declined) == (capacity, 5)
        assert look(pool, [1] * (capacity + 5)) == capacity


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"block_tokens": 0}, BadInput),
        ({"block_tokens": 1.5}, Mismatch),
        ({"tenant": 3}, Mismatch),
        ({"salt": "text"}, Mismatch),
        ({"capacity": "much"}, BadInput),
    ],
)
def test_bad_options_are_refused(space: Space, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        KVPool(space, LAYOUT, **options)


def test_what_is_no_space_and_no_layout(space: Space) -> None:
    with pytest.raises(Mismatch, match="Space"):
        KVPool("shelf", LAYOUT)  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match="Layout"):
        KVPool(space, {"layers": 2})  # type: ignore[arg-type]


def test_bad_puts_values_and_drafts(pool: KVPool) -> None:
    with pytest.raises(BadInput, match="ttl"):
        put(pool, [1], ttl=-1)
    with pytest.raises(BadInput, match="begins with block 1"):
        pool.put(tokens_of([1, 2]), cache_of([1, 2])[:, :, BLOCK:], start=BLOCK)
    with pytest.raises(BadInput, match="beyond"):
        pool.put(tokens_of([1]), cache_of([1]), start=8)
    with pytest.raises(Mismatch, match="bytes or an array"):
        pool.put("key", 7)
    with pytest.raises(Mismatch, match="strided"):
        pool.put("key", np.zeros((4, 4))[:, ::2])
    pool.put("key", bytes(100))
    with pytest.raises(BadInput, match=r"100 bytes.*only 10"):
        pool.get_into("key", bytearray(10))
    with pytest.raises(NotPermitted):
        pool.get_into("key", bytes(100))
    with pytest.raises(Mismatch, match="text or bytes"):
        pool.get(7)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"layers \[1\]"):
        with pool.draft(tokens_of([1])) as draft:
            draft.put_layer(0, cache_of([1])[0])
    with pytest.raises(Closed):
        draft.put_layer(1, cache_of([1])[1])
    with pool.draft(tokens_of([5])) as draft:
        with pytest.raises(OutOfRange, match="layer 7"):
            draft.put_layer(7, cache_of([5])[0])
        draft.abandon()


@pytest.mark.parametrize("offset", range(0, 136, 3))
def test_a_damaged_head_is_refused(space: Space, offset: int) -> None:
    with KVPool(space, LAYOUT, BLOCK, capacity="1MiB") as pool:
        put(pool, [1])
    head = shelf.memory_of(space, "kv")
    head[offset] ^= 0x41
    with pytest.raises(OpenshelfError, match="'kv'"):
        KVPool(space, LAYOUT, BLOCK)
    head[offset] ^= 0x41
    with KVPool(space, LAYOUT, BLOCK) as pool:
        assert look(pool, [1]) == 1
