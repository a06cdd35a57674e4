"""Keys: as specified, in every process, and never the same for what must not mix."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space, _core
from openshelf.errors import BadInput
from openshelf.kv import root_key
from tests.space import shelf

LAYOUT = Layout("llama@1", layers=2, heads=4, head_dim=64, dtype="float16")

# docs/formats/kv.md prints these.
ROOT = "0a71120ee9c574a6b7147ff103149ec77728d0a8aa5d9b8d36cde7b409dcebf4"
KEYS = (
    "4f269ff1724f9ac5e7fdf3b33d61f44229333658ec141d8b9f68a6f163e53e57",
    "94bbc8dbd1c28606359b8353c9dc432c866952163d89fa4d1d0bd3384ceafc90",
)


def by_hand(root: bytes, tokens: list[int], block_tokens: int) -> list[bytes]:
    """The specification, once more and without our code."""
    keys, key = [], root
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = struct.pack(f"<{block_tokens}I", *tokens[at : at + block_tokens])
        key = hashlib.sha256(b"OSFKVB1\0" + key + block).digest()
        keys.append(key)
    return keys


def native_keys(root: bytes, tokens: Any, block_tokens: int) -> list[bytes]:
    joined = _core.kv_keys(root, tokens, block_tokens)
    return [joined[at : at + 32] for at in range(0, len(joined), 32)]


def test_root_is_as_specified() -> None:
    text = struct.pack("<8sIIIIIIII4s", b"OSFKVR1\0", 2, 4, 64, 10, 0, 0, 1, 16, b"kthd")
    text += struct.pack("<I", 7) + b"llama@1" + struct.pack("<I", 0) + struct.pack("<I", 4) + b"acme"
    assert root_key(LAYOUT, 16, "acme", b"salt") == hmac.new(b"salt", text, hashlib.sha256).digest()


def test_vectors_of_the_format() -> None:
    root = root_key(LAYOUT, 16, "acme", b"salt")
    assert root.hex() == ROOT
    assert tuple(key.hex() for key in native_keys(root, list(range(32)), 16)) == KEYS


@pytest.mark.parametrize("block_tokens", [1, 3, 16, 64, 500])
def test_keys_equal_those_made_by_hand(block_tokens: int) -> None:
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, 1 << 32, 1000)]
    root = bytes(range(32))
    assert native_keys(root, tokens, block_tokens) == by_hand(root, tokens, block_tokens)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_keys_do_not_depend_on_how_tokens_are_held(dtype: str) -> None:
    tokens = list(range(5, 70))
    assert native_keys(bytes(32), np.array(tokens, dtype), 16) == by_hand(bytes(32), tokens, 16)


@pytest.mark.parametrize("bad", [[-1], [1 << 32], [1 << 70], ["a"], [1.5], [None]])
def test_what_is_no_token_is_refused(bad: list[Any]) -> None:
    with pytest.raises(BadInput, match=r"0 to 4294967295"):
        _core.kv_keys(bytes(32), [1, 2, *bad], 1)


def test_bad_tokens_in_arrays_are_refused() -> None:
    for bad in (-1, 1 << 32):
        with pytest.raises(BadInput, match=str(bad)):
            _core.kv_keys(bytes(32), np.array([1, bad]), 1)
    with pytest.raises(BadInput, match="32 bytes"):
        _core.kv_keys(b"short", [1], 1)


def test_every_part_of_a_layout_changes_the_root() -> None:
    others = [
        replace(LAYOUT, model="llama@2"),
        replace(LAYOUT, layers=3),
        replace(LAYOUT, heads=2),
        replace(LAYOUT, head_dim=32),
        replace(LAYOUT, dtype="bfloat16"),
        replace(LAYOUT, order="khtd"),
        replace(LAYOUT, latent=True),
        replace(LAYOUT, ranks=2),
        replace(LAYOUT, ranks=2, rank=1),
        replace(LAYOUT, adapter="lora"),
        replace(LAYOUT, model="llama@", adapter="1"),
    ]
    roots = {root_key(layout, 16) for layout in [LAYOUT, *others]}
    roots |= {root_key(LAYOUT, 8), root_key(LAYOUT, 16, "acme"), root_key(LAYOUT, 16, "acme", b"salt")}
    assert len(roots) == len(others) + 4


def test_keys_of_plain_values_are_as_specified(space: Space) -> None:
    layout = Layout.raw(64)
    with KVPool(space, layout, 1, capacity="1MiB", salt=b"salt") as pool:
        pool.put("name", bytes(100))
        memory = shelf.memory_of(space, "kv").tobytes()
    first = hashlib.sha256(b"OSFKVV1\0" + root_key(layout, 1, "", b"salt") + b"name").digest()
    assert first in memory
    nonce = memory[memory.index(first) + 96 :][:8]  # in the entry of its first block
    second = hashlib.sha256(b"OSFKVN1\0" + first + nonce).digest()
    assert second in memory


PROGRAM = """
import numpy as np
from openshelf import Layout, _core
from openshelf.kv import root_key
layout = Layout("llama@1", layers=2, heads=4, head_dim=64, dtype="float16")
print(_core.kv_keys(root_key(layout, 16, "acme", b"salt"), np.arange(64), 16).hex())
"""


def test_keys_are_equal_whatever_the_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "4711", "random"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found.add(done.stdout.strip())
    expected = by_hand(root_key(LAYOUT, 16, "acme", b"salt"), list(range(64)), 16)
    assert found == {b"".join(expected).hex()}
