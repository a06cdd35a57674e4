"""A pool against a dict of prefixes: equal where there is room for all, never wrong where there is not."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from openshelf import KVPool, Space
from openshelf.kv import Hit
from tests.kv.prompts import BLOCK, assert_sound, cache_of, check_hit, look, put, small_pool, tokens_of

PATHS = st.lists(st.integers(1, 3), max_size=6)


class Oracle:
    """Prefixes that are there."""

    def __init__(self) -> None:
        self.prefixes: set[tuple[int, ...]] = set()
        self.pinned: set[tuple[int, ...]] = set()

    def present(self, path: list[int]) -> int:
        length = 0
        while length < len(path) and tuple(path[: length + 1]) in self.prefixes:
            length += 1
        return length

    def needed(self, prefix: tuple[int, ...], held: set[tuple[int, ...]]) -> bool:
        """Somebody holds it, or something continues it."""
        longer = any(other[: len(prefix)] == prefix for other in self.prefixes if len(other) > len(prefix))
        return longer or prefix in held or prefix in self.pinned

    def evict(self, path: list[int], held: set[tuple[int, ...]]) -> int:
        gone, at = 0, tuple(path[: self.present(path)])
        while at and not self.needed(at, held):
            self.prefixes.discard(at)
            at, gone = at[:-1], gone + 1
        return gone


class Machine(RuleBasedStateMachine):
    blocks = 2000

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.mkdtemp(prefix="openshelf-test-", dir="/dev/shm")
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("OPENSHELF_DIR", self.home)
        self.space = Space.create("oracle", "8MiB")
        self.pool: KVPool = small_pool(self.space, self.blocks)
        self.oracle = Oracle()
        self.hits: list[tuple[Hit, list[int]]] = []

    def held(self) -> set[tuple[int, ...]]:
        return {tuple(path[: hit.blocks]) for hit, path in self.hits}

    @rule(path=PATHS)
    def put(self, path: list[int]) -> None:
        there = self.oracle.present(path)
        assert put(self.pool, path) == (len(path), there, len(path) - there, 0)
        self.oracle.prefixes |= {tuple(path[: at + 1]) for at in range(len(path))}

    @rule(path=PATHS, layers=st.permutations([0, 1]))
    def draft(self, path: list[int], layers: list[int]) -> None:
        with self.pool.draft(tokens_of(path)) as draft:
            for layer in layers:
                draft.put_layer(layer, cache_of(path)[layer])
        self.oracle.prefixes |= {tuple(path[: at + 1]) for at in range(len(path))}

    @rule(path=PATHS)
    def match(self, path: list[int]) -> None:
        assert look(self.pool, path) == self.oracle.present(path)
        assert self.pool.present(tokens_of(path)) == self.oracle.present(path) * BLOCK

    @rule(path=PATHS)
    def hold(self, path: list[int]) -> None:
        self.hits.append((self.pool.match(tokens_of(path)), path))

    @rule()
    def release(self) -> None:
        if self.hits:
            self.hits.pop(0)[0].release()

    @rule(path=PATHS)
    def evict(self, path: list[int]) -> None:
        assert self.pool.evict(tokens_of(path)) == self.oracle.evict(path, self.held())

    @rule(path=PATHS)
    def pin(self, path: list[int]) -> None:
        length = self.oracle.present(path)
        assert self.pool.pin(tokens_of(path)) == length * BLOCK
        if length:
            self.oracle.pinned.add(tuple(path[:length]))

    @rule(path=PATHS)
    def unpin(self, path: list[int]) -> None:
        self.pool.unpin(tokens_of(path))
        length = self.oracle.present(path)
        self.oracle.pinned -= {tuple(path[: at + 1]) for at in range(length)}

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        self.oracle.pinned.clear()
        keep = {prefix[: at + 1] for prefix in self.held() for at in range(len(prefix))}
        self.oracle.prefixes &= keep

    @invariant()
    def held_blocks_are_whole(self) -> None:
        for hit, path in self.hits:
            check_hit(hit, path)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.stats()["blocks"] == len(self.oracle.prefixes)

    def teardown(self) -> None:
        assert_sound(self.pool)
        for hit, _ in self.hits:
            hit.release()
        self.pool.close()
        self.space.close()
        self.patch.undo()
        shutil.rmtree(self.home, ignore_errors=True)


class FullMachine(Machine):
    """A pool that is too small: what was put may have gone, but nothing that is held, no parent before its child."""

    blocks = 12

    @rule(path=PATHS)
    def put(self, path: list[int]) -> None:
        done = put(self.pool, path)
        assert done.present + done.stored + done.declined == len(path)
        if not self.hits and not self.oracle.pinned:
            assert done.declined == 0
            assert look(self.pool, path) == len(path)
        self.oracle.prefixes |= {tuple(path[: at + 1]) for at in range(len(path))}

    @rule(path=PATHS)
    def match(self, path: list[int]) -> None:
        assert look(self.pool, path) <= self.oracle.present(path)

    @rule(path=PATHS)
    def evict(self, path: list[int]) -> None:
        there = self.pool.present(tokens_of(path)) // BLOCK
        assert self.pool.evict(tokens_of(path)) <= there

    @rule(path=PATHS)
    def pin(self, path: list[int]) -> None:
        if length := self.pool.pin(tokens_of(path)) // BLOCK:
            self.oracle.pinned.add(tuple(path[:length]))

    @rule(path=PATHS)
    def unpin(self, path: list[int]) -> None:
        length = self.pool.present(tokens_of(path)) // BLOCK
        self.pool.unpin(tokens_of(path))
        self.oracle.pinned -= {tuple(path[: at + 1]) for at in range(length)}

    @invariant()
    def counts_agree(self) -> None:
        for prefix in self.oracle.pinned:
            assert look(self.pool, list(prefix)) == len(prefix)


LIMITS: Any = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestRoomForAll = Machine.TestCase
TestRoomForAll.settings = LIMITS
TestTooSmall = FullMachine.TestCase
TestTooSmall.settings = LIMITS
