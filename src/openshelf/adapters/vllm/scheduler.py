"""The scheduler's half: which prompts begin with something that the pool has, and what a step computes that it has not.

What was found is loaded before vLLM schedules the request, and shares its blocks with nobody until it is there. (Loaded
within a step, a failure came too late: vLLM had given the blocks to others, which went on with them.) It is held until
then, so that nobody evicts it; the worker finds it anew by its keys. Should it be gone all the same (it expired, the
space was removed), the worker says so, and vLLM computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from openshelf.adapters.vllm.extra import say_once
from openshelf.adapters.vllm.layout import layout_of, spec_of
from openshelf.adapters.vllm.options import Options
from openshelf.adapters.vllm.pools import open_pools
from openshelf.adapters.vllm.step_copies import Copy, StepCopies
from openshelf.adapters.vllm.weights import adapter_name
from openshelf.errors import OpenshelfError
from openshelf.kv import Hit, Layout


@dataclass
class Asked:
    """A request that is served: whose blocks it may share, how many of its tokens vLLM has, how many the pool."""

    request: Any
    layout: Layout
    computed: int
    stored: int = 0


class Scheduler:
    """One an engine. `loads` and `saves`: whether it may read from the pool, and write to it."""

    def __init__(self, config: Any, cache: Any, options: Options, *, loads: bool, saves: bool) -> None:
        self._loads, self._saves = loads, saves
        self._layout = layout_of(config, cache, name=options.model)
        self._block_tokens: int = spec_of(cache).block_size
        self._pools = open_pools(options, self._block_tokens, self._layout)
        self._adapters: dict[tuple[int, str], str | None] = {}
        self._asked: dict[str, Asked] = {}
        self._hits: dict[str, list[Hit]] = {}
        self._loading: dict[str, set[int]] = {}  # vLLM's blocks of a request
        self._lost: set[str] = set()  # requests of which a load failed: no second try, which may fail for ever
        self._step = StepCopies()

    def matched(self, request: Any, computed: int) -> int:
        """How many tokens after those that are `computed` the pool has, whole blocks, never the prompt's last token."""
        self._hits.pop(request.request_id, None)
        layout = self._layout_for(request)
        if layout is None:
            return 0
        asked = self._asked[request.request_id] = Asked(request, layout, computed)
        if not self._loads or request.request_id in self._lost:
            return 0
        hits = self._match(layout, request.cache_salt or "", request.all_token_ids[: request.num_tokens - 1])
        asked.stored = min((hit.length for hit in hits), default=0)
        if asked.stored <= computed:
            return 0
        self._hits[request.request_id] = hits
        return asked.stored - computed

    def _match(self, layout: Layout, cache_salt: str, tokens: list[int]) -> list[Hit]:
        """A hit for each rank; none if the pool is not to be had."""
        if self._pools is None:
            return []
        try:
            ranks = [replace(layout, rank=rank) for rank in range(layout.ranks)]
            return [self._pools.of(layout, cache_salt).match(tokens) for layout in ranks]
        except OpenshelfError as error:
            say_once("the pool cannot be asked, serving without", error)
            return []

    def _layout_for(self, request: Any) -> Layout | None:
        """None if its tokens alone do not tell what its blocks contain."""
        if request.prompt_token_ids is None or request.prompt_embeds is not None:
            return None
        if request.mm_features or request.resumable or request.pooling_params is not None:
            return None
        lora = request.lora_request
        if lora is None:
            return self._layout
        key = (lora.lora_int_id, lora.lora_path)
        if lora.load_inplace or key not in self._adapters:
            self._adapters[key] = adapter_name(lora)
        name = self._adapters[key]
        if name is None:
            say_once("an adapter is not a local folder, its requests are not pooled", lora.lora_path)
            return None
        return replace(self._layout, adapter=name)

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """vLLM has blocks for a request, of whose tokens `external` are to be loaded."""
        asked = self._asked.get(request.request_id)
        if asked is None or not external:
            self._hits.pop(request.request_id, None)
            return
        stop = asked.computed + external
        numbers = blocks.get_block_ids()[0][: stop // self._block_tokens]
        self._step.loads.append(self._copy(asked, stop, numbers, asked.computed))
        self._loading[request.request_id] = set(numbers[asked.computed // self._block_tokens :])

    def _copy(self, asked: Asked, stop: int, blocks: list[int], start: int = 0) -> Copy:
        request = asked.request
        salt, tokens = request.cache_salt or "", request.all_token_ids[:stop]
        return Copy(request.request_id, asked.layout, salt, tokens, list(blocks), start)

    def plan(self, output: Any) -> StepCopies:
        """The step that vLLM scheduled: what was asked for, and the blocks that will be full when it is over.

        Tokens that are not known yet (drafted ones, or those of a step under way) are left for later."""
        step, self._step = self._step, StepCopies()
        for name, scheduled in output.num_scheduled_tokens.items() if self._saves and self._pools else ():
            asked = self._asked.get(name)
            if asked is None:
                continue
            full = min(asked.request.num_computed_tokens + scheduled, asked.request.num_tokens) // self._block_tokens
            if full * self._block_tokens > asked.stored:
                asked.stored = full * self._block_tokens
                blocks = output.kv_connector_block_state.get_block_ids(name)[0][:full]
                step.saves.append(self._copy(asked, asked.stored, blocks))
        return step

    def done(self, loaded: set[str], failed: set[int]) -> None:
        """Requests that are loaded, and vLLM's blocks that were not, which it computes and we store again."""
        for name, blocks in self._loading.items():
            if blocks & failed and name in self._asked:
                self._lost.add(name)
                self._asked[name].stored = 0
        for name in loaded:
            self._loading.pop(name, None)
            self._hits.pop(name, None)

    def forget(self, name: str) -> None:
        """A request is finished. What it was still loading is over some time."""
        self._asked.pop(name, None)
        self._lost.discard(name)
        if name not in self._loading:
            self._hits.pop(name, None)
