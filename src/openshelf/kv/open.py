"""Opening a pool, or making it: the first process does, and others that come at the same time wait for it."""

from __future__ import annotations

from openshelf import _core
from openshelf._files import alone
from openshelf.errors import Mismatch, NoRoom, UnknownName
from openshelf.kv.layout import Layout
from openshelf.space import Cluster, Space, array_name, format_size, parse_size

_BLOCKS_MAX = (1 << 30) - 1


def core_of(space: Space) -> _core.Core:
    """What a space is on this host."""
    if not isinstance(space, Space):
        raise Mismatch(f"KV pools are in a Space, got {type(space).__name__}")
    native = space._native
    if isinstance(native, Cluster):
        native.refuse_replicas("KV pools")
    core = native.core if isinstance(native, Cluster) else native
    assert isinstance(core, _core.Core)
    return core


def open_or_make(
    space: Space, layout: Layout, block_tokens: int, name: str, capacity: str | int | None
) -> _core.KVCore:
    """The pool of this name; Mismatch if its blocks have another size, or there are more or fewer than asked for."""
    core, name = core_of(space), array_name("", name)
    size = layout.block_bytes(block_tokens)
    pool = _core.KVCore.open(core, name)
    if pool is None:
        with alone(core.directory):  # two makers at once would each take room for a pool, and one find none
            pool = _core.KVCore.open(core, name)
            if pool is None:
                pool = _core.KVCore.make(
                    core, name, size, block_tokens, _block_count(core, size, block_tokens, capacity)
                )
    return _checked(pool, core, layout, block_tokens, name, capacity)


def open_there(space: Space, layout: Layout, block_tokens: int, name: str) -> _core.KVCore:
    """The pool of this name, which somebody made; UnknownName if it is gone."""
    core = core_of(space)
    pool = _core.KVCore.open(core, name)
    if pool is None:
        raise UnknownName(f"there is no pool {name!r} in the space {core.stats()['name']!r} any more: it was deleted")
    return _checked(pool, core, layout, block_tokens, name, None)


def _checked(
    pool: _core.KVCore, core: _core.Core, layout: Layout, block_tokens: int, name: str, capacity: str | int | None
) -> _core.KVCore:
    size = layout.block_bytes(block_tokens)
    there_bytes, there_tokens, blocks, _ = pool.facts
    if (there_bytes, there_tokens) != (size, block_tokens):
        raise Mismatch(
            f"the pool {name!r} has blocks of {there_tokens} tokens and {there_bytes} bytes ({blocks} of them), "
            f"this layout of {layout.model!r} needs {block_tokens} tokens and {size} bytes: give it another name="
        )
    if capacity is not None and (wanted := _block_count(core, size, block_tokens, capacity)) != blocks:
        raise Mismatch(
            f"the pool {name!r} has room for {blocks} blocks, and capacity={capacity!r} is room for {wanted}: leave it "
            "out, give the one that the pool was made with, or another name="
        )
    return pool


def _block_count(core: _core.Core, block_bytes: int, block_tokens: int, capacity: str | int | None) -> int:
    stats = core.stats()
    room = int(stats["largest_free"]) * 9 // 10 if capacity is None else parse_size(capacity)
    tiers = core.tiers  # with a flash tier blocks come and go, but what the pool knows of them stays in dram
    memory = room if tiers is None else int(tiers.counts()["dram_budget"]) // 2
    low, high = 0, min(_BLOCKS_MAX, room // block_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        known = _core.KVCore.metadata_bytes(block_bytes, block_tokens, middle)
        if known <= memory and _core.KVCore.bytes_needed(block_bytes, block_tokens, middle) <= room:
            low = middle
        else:
            high = middle - 1
    if not low:
        need = _core.KVCore.bytes_needed(block_bytes, block_tokens, 1)
        raise NoRoom(
            f"no room for one block: a pool of one block of {format_size(block_bytes)} takes {format_size(need)}, it "
            f"may take {format_size(room)} of the space {stats['name']!r}, whose longest free run has "
            f"{format_size(int(stats['largest_free']))}; give a "
            "larger capacity=, grow the space, or use fewer tokens a block"
        )
    return low
