"""A worker's half: copies blocks between the pool and vLLM's pages.

What a request begins with is read in the background, while others compute; vLLM schedules it when all of it is there.
What a step computes is written layer by layer.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from openshelf.adapters.vllm.extra import say_once
from openshelf.adapters.vllm.layout import layer_names, pages_of, spec_of
from openshelf.adapters.vllm.options import Options
from openshelf.adapters.vllm.pools import Pools, open_pools
from openshelf.adapters.vllm.step_copies import Copy, StepCopies
from openshelf.errors import Closed, OpenshelfError
from openshelf.kv import Draft, KVPool


class Worker:
    """One a process that computes; `rank` of the tensor-parallel ones."""

    def __init__(self, cache: Any, options: Options, rank: int) -> None:
        self._options, self._rank = options, rank
        self._spec = spec_of(cache)
        self._numbers = {name: number for number, name in enumerate(layer_names(cache))}
        self._pages: dict[int, Any] = {}
        self._pools: Pools | None = None
        self._loading: list[tuple[Copy, list[Future[None]]]] = []
        self._drafts: list[tuple[Draft, list[int]]] | None = None
        self._failed: set[int] = set()

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

    def begin(self, step: StepCopies) -> None:
        """Starts to read what is to be loaded. Blocks that are not there any more have failed."""
        for copy in step.loads:
            futures: list[Future[None]] = []
            self._loading.append((copy, futures))
            try:
                hit = self._pool(copy).match(copy.tokens)
            except OpenshelfError as error:
                self._fail(copy, copy.start, error)
                continue
            if hit.length < len(copy.tokens):
                self._fail(copy, hit.length, f"{hit.length} of {len(copy.tokens)} tokens are left")
            if hit.length > copy.start:
                table = copy.blocks[copy.start // self._spec.block_size :]
                futures += [
                    hit.read_pages_async(number, self._pages[number], table, start=copy.start)
                    for number in range(len(self._numbers))
                ]

    def _fail(self, copy: Copy, token: int, why: object) -> None:
        say_once("what was found could not be loaded, it is computed", why)
        self._failed.update(copy.blocks[max(token, copy.start) // self._spec.block_size :])

    def loaded(self) -> set[str]:
        """Requests whose loads are over since it was asked last, failed ones among them."""
        over = [(copy, futures) for copy, futures in self._loading if all(future.done() for future in futures)]
        for copy, futures in over:
            self._loading.remove((copy, futures))
            for future in futures:
                try:
                    future.result()
                except OpenshelfError as error:
                    self._fail(copy, copy.start, error)
        return {copy.request for copy, _ in over}

    def save(self, name: str, step: StepCopies) -> None:
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

    def end(self) -> None:
        """What was computed can be found by others."""
        drafts, self._drafts = self._drafts or [], None
        for draft, _ in drafts:
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
