"""Whatever is given for an argument of a pool, a hit, a draft or a layout: no other library's exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openshelf import KVPool, Layout
from openshelf.errors import BadInput, Closed, Mismatch, OutOfRange
from openshelf.kv import describe, pools, root_key
from openshelf.space import Space
from tests.junk import raw_errors, raw_errors_of_methods

LAYOUT = {"model": "m", "layers": 2, "heads": 2, "head_dim": 4, "dtype": "float32"}
CONFIG = {"num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 8}


def _with(argument: str, call: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    return lambda junk: call({argument: junk})


def test_layouts() -> None:
    layout = Layout(**LAYOUT)  # type: ignore[arg-type]
    for argument in (*LAYOUT, "order", "latent", "rank", "ranks", "adapter"):
        assert raw_errors(_with(argument, lambda given: Layout(**{**LAYOUT, **given}))) == []
    assert (
        raw_errors_of_methods(
            layout, {"tokens": 4, "layer": 0, "array": np.zeros(3), "shape": (3,), "what": "it"}, ("check_array",)
        )
        == []
    )
    assert raw_errors(Layout.from_config) == []
    assert raw_errors(lambda junk: Layout.raw(junk)) == []
    for argument in ("model", "ranks", "dtype"):
        assert raw_errors(_with(argument, lambda given: Layout.from_config(CONFIG, **{"model": "m", **given}))) == []
    for argument in (*CONFIG, "num_key_value_heads", "head_dim", "kv_lora_rank", "dtype"):
        assert raw_errors(_with(argument, lambda given: Layout.from_config({**CONFIG, **given}, model="m"))) == []


def test_pools_hits_and_drafts(space: Space) -> None:
    layout = Layout(**LAYOUT)  # type: ignore[arg-type]
    good: dict[str, Any] = {"space": space, "layout": layout, "block_tokens": 4, "name": "kv", "capacity": "1MiB"}
    for argument in (*good, "tenant", "salt", "quota", "verify"):

        def make(junk: Any, argument: str = argument) -> None:
            KVPool(**{**good, argument: junk}).close()
            for name in pools(space):
                space.delete(name)

        assert raw_errors(make) == [], argument
    pool, tokens = KVPool(**good), list(range(8))
    cache = np.zeros(layout.shape(8), "float32")
    pool.put(tokens, cache)
    given: dict[str, Any] = {
        "tokens": tokens, "kv": cache, "prompts": [(tokens, cache)], "key": "k", "keys": ["k"], "tenant": "t",
        "buffer": bytearray(4), "layer": 0, "index": 0, "pages": cache, "table": [0], "out": cache[0],
    }  # fmt: skip
    assert (
        raw_errors_of_methods(pool, given, besides=("close", "flush", "clear", "evict", "match_async", "put_async"))
        == []
    )
    assert raw_errors(lambda junk: pool.match_async(junk).result(60)) == []
    assert raw_errors(lambda junk: pool.put_async(tokens, junk).result(60)) == []
    with pool.match(tokens) as hit:
        assert raw_errors_of_methods(hit, given, besides=("release",)) == []
        assert raw_errors(lambda junk: hit.layer(0)[junk]) == []
        assert raw_errors(lambda junk: hit.layer(0).torch(junk)) == []
    draft = pool.draft(list(range(100, 116)))
    assert raw_errors_of_methods(draft, given | {"kv": cache[0]}, besides=("publish", "abandon")) == []
    for argument in ("tokens", "keep"):
        assert raw_errors(_with(argument, lambda given: pool.evict(**{"tokens": tokens, **given}))) == []
    assert raw_errors(pool.clear) == []
    for call in (pools, describe, lambda junk: describe(space, junk)):
        assert raw_errors(call) == []
    key: dict[str, Any] = {"layout": layout, "block_tokens": 4, "tenant": "t", "salt": b"salt"}
    for argument in key:
        assert raw_errors(_with(argument, lambda given: root_key(**{**key, **given}))) == []


def test_what_was_expected_is_named(space: Space) -> None:
    layout = Layout(**LAYOUT)  # type: ignore[arg-type]
    with pytest.raises(Mismatch, match="KV pools are in a Space, got str"):
        KVPool("shelf", layout)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="is not a name"):
        KVPool(space, layout, name="\0")
    with pytest.raises(Mismatch, match="num_attention_heads must be an integer, got 'many'"):
        Layout.from_config({**CONFIG, "num_attention_heads": "many"}, model="m")
    pool = KVPool(space, layout, capacity="1MiB")
    with pytest.raises(Mismatch, match="put_many takes pairs"):
        pool.put_many([[1, 2, 3]])  # type: ignore[list-item]
    space.close()
    with pytest.raises(Closed, match="open it again"):
        KVPool(space, layout)


def test_layers_are_counted_as_blocks_are(space: Space) -> None:
    pool = KVPool(space, Layout(**LAYOUT), block_tokens=4)  # type: ignore[arg-type]
    cache = np.arange(np.prod(pool.layout.shape(8)), dtype="float32").reshape(pool.layout.shape(8))
    with pool.draft(range(8)) as draft:
        assert repr(draft) == "Draft(tokens 0 to 8)"
        draft.put_layer(0, cache[0])
        draft.put_layer(-1, cache[1])
        with pytest.raises(OutOfRange, match="layer 2 is out of range for a layout of 2 layers"):
            draft.put_layer(2, cache[1])
    with pool.match(range(8)) as hit:
        assert np.array_equal(hit.read_layer(-1), cache[1])
        assert np.array_equal(hit.layer(-1)[0], hit.layer(1)[0])
        for layer in (2, -3):
            with pytest.raises(OutOfRange, match=f"layer {layer} is out of range for a layout of 2 layers"):
                hit.layer(layer)


def test_what_is_no_row_of_tokens_is_named(space: Space) -> None:
    pool = KVPool(space, Layout(**LAYOUT), block_tokens=4)  # type: ignore[arg-type]
    for wrong in (None, 5, "abc"):
        with pytest.raises(Mismatch, match=f"got {wrong!r}; a key of plain values is text or bytes"):
            pool.match(wrong)
