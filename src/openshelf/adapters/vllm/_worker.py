"""A worker's half: copies blocks between the pool and vLLM's pages, layer by layer as the model goes on.

Layers are read in the background while those before them compute, and written when they are computed. What a step
computed after a failed load is wrong: nothing of it is published.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from openshelf.adapters.vllm._extra import say_once
from openshelf.adapters.vllm._layout import layer_names, pages_of, spec_of
from openshelf.adapters.vllm._options import Options
from openshelf.adapters.vllm._pools import Pools, open_pools
from openshelf.adapters.vllm._step import Copy, Step
from openshelf.errors import Closed, OpenshelfError
from openshelf.kv import Draft, KVPool


class Worker:
    """One a process that computes. `rank` of the tensor-parallel ones; `agree` tells whether any of them has a True."""

    def __init__(self, cache: Any, options: Options, rank: int, agree: Any) -> None:
        self._options, self._rank, self._agree = options, rank, agree
        self._spec = spec_of(cache)
        self._numbers = {name: number for number, name in enumerate(layer_names(cache))}
        self._pages: dict[int, Any] = {}
        self._pools: Pools | None = None
        self._coming: list[tuple[Copy, list[Future[None]]]] = []
        self._drafts: list[tuple[Draft, list[int]]] | None = None
        self._failed: set[int] = set()
        self._failures = 0

    def register(self, caches: dict[str, Any]) -> None:
        """Takes vLLM's pages of every layer."""
        self._pages = {
            number: pages_of(caches.get(name), name, self._spec) for name, number in self._numbers.items()
        }  # fmt: skip

    def _pool(self, copy: Copy) -> KVPool:
        layout = replace(copy.layout, rank=self._rank)
        if self._pools is None:
            self._pools = open_pools(self._options, self._spec.block_size, layout)
        if self._pools is None:
            raise Closed(f"the space {self._options.space!r} is not open")
        return self._pools.of(layout, copy.cache_salt)

    def begin(self, step: Step) -> None:
        """Starts to read what is to be loaded. Blocks that are not there any more have failed."""
        for copy in step.loads:
            try:
                hit = self._pool(copy).match(copy.tokens)
            except OpenshelfError as error:
                self._fail(copy, copy.start, error)
                continue
            if hit.length < len(copy.tokens):
                self._fail(copy, hit.length, f"{hit.length} of {len(copy.tokens)} tokens are left")
            if hit.length > copy.start:
                table = copy.blocks[copy.start // self._spec.block_size :]
                futures = [
                    hit.read_pages_async(number, self._pages[number], table, start=copy.start)
                    for number in range(len(self._numbers))
                ]
                self._coming.append((copy, futures))

    def _fail(self, copy: Copy, token: int, why: object) -> None:
        say_once("what was found could not be loaded, it is computed", why)
        self._failed.update(copy.blocks[max(token, copy.start) // self._spec.block_size :])

    def arrive(self, name: str) -> None:
        """Waits for one layer of all that is loaded."""
        number = self._numbers.get(name)
        if number is not None:
            for copy, futures in self._coming:
                self._await(copy, futures[number])

    def _await(self, copy: Copy, future: Future[None]) -> None:
        try:
            future.result()
        except OpenshelfError as error:
            self._fail(copy, copy.start, error)

    def save(self, name: str, step: Step) -> None:
        """One layer is computed: its blocks go into the pool."""
        number = self._numbers.get(name)
        if number is None or not step.saves:
            return
        if self._drafts is None:
            self._drafts = [made for copy in step.saves if (made := self._draft(copy)) is not None]
        for draft, table in list(self._drafts):
            try:
                draft.put_pages(number, self._pages[number], table, start=draft.start)
            except OpenshelfError as error:
                self._give_up(draft, table, error)

    def _draft(self, copy: Copy) -> tuple[Draft, list[int]] | None:
        try:
            draft = self._pool(copy).draft(copy.tokens)
        except OpenshelfError as error:
            say_once("blocks are not stored", error)
            return None
        if draft.stop == draft.start:  # all is there, or there is no room
            self._publish(draft)
            return None
        first, last = (token // self._spec.block_size for token in (draft.start, draft.stop))
        return draft, copy.blocks[first:last]

    def _give_up(self, draft: Draft, table: list[int], error: OpenshelfError) -> None:
        say_once("blocks are not stored", error)
        assert self._drafts is not None
        self._drafts.remove((draft, table))
        draft.abandon()

    def end(self, step: Step) -> None:
        """All that was to be loaded is there or has failed; what was computed can be found by others."""
        for copy, futures in self._coming:
            for future in futures:
                self._await(copy, future)
        self._coming.clear()
        failed = bool(self._failed)
        if step.loads:  # a worker computes with what the others loaded
            failed = self._agree(failed)
        self._failures += failed
        drafts, self._drafts = self._drafts or [], None
        for draft, _ in drafts:
            if failed or step.failures != self._failures:
                draft.abandon()
            else:
                self._publish(draft)

    def _publish(self, draft: Draft) -> None:
        try:
            stored = draft.publish()
        except OpenshelfError as error:
            say_once("blocks are not stored", error)
            return
        if stored.declined:
            say_once("blocks are not stored", f"no room in the pool for {stored.declined} of {stored.blocks}")

    def failed(self) -> set[int]:
        """vLLM's numbers of the blocks that could not be loaded since it was asked last."""
        blocks, self._failed = self._failed, set()
        return blocks
