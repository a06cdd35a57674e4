"""Decoding: a language model that generates within a budget, its KV cache in a tier below, brought back layer by layer.

Three programs: one begins a context with a prompt, one appends a piece of a long prompt, one appends a token. Each is
captured once for all lengths (`capture/affine.py`), and planned for each bucket of lengths when that is first needed.
Plans for the longest are made at once, so that what the run takes is known before it begins. All share one arena.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena
from openshelf.errors import BadInput, Closed, NoRoom
from openshelf.fabric import Fabric
from openshelf.offload.decoder.executor import executor_of
from openshelf.offload.decoder.kv_tier import KVTier, grain
from openshelf.offload.decoder.memory import DecoderMemory
from openshelf.offload.decoder.model import GrowingModel
from openshelf.offload.decoder.plan import BucketPlan, growth_of, plan_growth
from openshelf.offload.measure.transfers import rates_of
from openshelf.offload.move.mover import Traffic
from openshelf.offload.planner.plan import Plan
from openshelf.offload.program.rates import Rates, Tier
from openshelf.offload.program.torch import arena_bytes, torch
from openshelf.offload.run.executor import Executor
from openshelf.offload.weights.source import packed_from
from openshelf.space import format_size, parse_size

SMALLEST = 256  # tokens of the smallest bucket
NEXT, FIRST, MORE = "next", "first", "more"  # a token; the beginning of a prompt; another piece of it


class Decoder:
    """A model that continues sequences within a budget: `prefill`, then `step` by step; or `generate`.

    `length` is how many tokens are in the cache. Not thread-safe. close() gives memory and files back; so does the end
    of the process.
    """

    def __init__(
        self,
        model: Any,
        budget: int,
        *,
        longest: int,
        batch: int,
        chunk: int,
        kv: Tier,
        weights: Any,
        rates: Rates,
        time_limit: float,
        cache: bool,
        folder: Path | str | None,
    ) -> None:
        growing = GrowingModel(model, batch, longest)
        self.batch, self.longest, self.length = batch, longest, 0
        self._chunk, self._grain = chunk, grain(growing.shapes)
        self._growths = {NEXT: growth_of(growing, longest), FIRST: growth_of(growing, self._chunk, fresh=True)}
        if self._chunk < longest:
            self._growths[MORE] = growth_of(growing, longest, tokens=self._chunk)
        outside = max(growth.timed.outside for growth in self._growths.values())
        most = {name: self._room(self._chunk if name == FIRST else longest) for name in self._growths}
        enough = max(growth.enough(most[name]) for name, growth in self._growths.items())
        arena = min(enough, (budget - outside) // 4096 * 4096)
        if arena < (least := max(growth.least(most[name]) for name, growth in self._growths.items())):
            raise NoRoom(
                f"a budget of {format_size(budget)} is too small for contexts of {longest} tokens, prompts in pieces "
                f"of {chunk}: the least that works is {least + outside} bytes; or give a smaller `chunk` or `longest`"
            )
        self.peak = arena + outside
        self._asked: dict[str, Any] = {"rates": rates, "kv": kv, "time_limit": time_limit, "cache": cache}
        self._arena_bytes = arena
        self._plans: dict[tuple[str, int], BucketPlan] = {}
        self._runs: dict[tuple[str, int], Executor] = {}
        for name, room in most.items():
            self._plan(name, room)
        packed = packed_from(self._growths[NEXT].lengths.captured, model if weights is None else weights, folder)
        self._arena = DeviceArena(arena)
        tier = KVTier(growing.shapes, self._up(longest), kv, self._arena, folder)
        self._memory: DecoderMemory | None = DecoderMemory(packed, self._growths, self._arena, tier, folder)
        self._usable = True

    def prefill(self, tokens: Any) -> Any:
        """Begins a context with these tokens, (length,) or (batch, length); returns the logits that come after them."""
        ids = self._ids(tokens)
        count = ids.shape[1]
        if not 0 < count <= self.longest:
            raise BadInput(f"a prompt has 1 to longest={self.longest} tokens, got {count}")
        self.length = 0
        begin = count % self._chunk or self._chunk
        logits = self._run(FIRST if begin > 1 else NEXT, ids[:, :begin])
        for at in range(begin, count, self._chunk):
            logits = self._run(MORE, ids[:, at : at + self._chunk])
        return logits

    def step(self, token: Any) -> Any:
        """Appends a token to each sequence, (batch,) or (batch, 1); returns the logits that come after it."""
        ids = self._ids(token)
        if ids.shape[1] != 1:
            raise BadInput(f"a step appends one token to each of {self.batch} sequences, got {tuple(ids.shape)}")
        if self.length >= self.longest:
            raise NoRoom(f"the context is full: {self.length} tokens, and longest={self.longest}; begin with more")
        return self._run(NEXT, ids)

    def generate(
        self, tokens: Any, count: int, *, stop: int | None = None, choose: Callable[[Any], Any] | None = None
    ) -> Any:
        """The prompt and up to `count` tokens more, (batch, length): the likeliest, or what `choose` makes of logits.

        Ends early when all sequences have come to the token `stop`, which fills those that ended before others.
        """
        choose = choose or (lambda logits: logits.argmax(-1))
        found = [self._ids(tokens)]
        if found[0].shape[1] + count - 1 > self.longest:
            raise NoRoom(
                f"a prompt of {found[0].shape[1]} tokens and {count} more do not fit longest={self.longest}: ask for "
                "fewer, or call decode() with more"
            )
        logits = self.prefill(found[0])
        ended = torch.zeros(self.batch, dtype=torch.bool)
        for number in range(count):
            token = choose(logits)
            if stop is not None:
                token = torch.where(ended, stop, token)
                ended |= token == stop
            found.append(token[:, None])
            if number == count - 1 or bool(ended.all()):
                break
            logits = self.step(token)
        return torch.cat(found, 1)

    def plan(self, length: int | None = None) -> Plan:
        """The plan by which the next token is made, or the one after `length`; without what stays in the arena."""
        return self._plan(NEXT, self._room((self.length if length is None else length) + 1)).plan

    def stays(self, length: int | None = None) -> dict[str, int]:
        """What stays in the arena from token to token, in bytes: by the kind of storage."""
        bucket = self._plan(NEXT, self._room((self.length if length is None else length) + 1))
        found: dict[str, int] = {}
        for storage in bucket.growth.program(bucket.room).storages:
            if storage.index in bucket.stays:
                found[storage.kind] = found.get(storage.kind, 0) + storage.nbytes
        return found

    @property
    def settled(self) -> int:
        """Bytes that were brought to where they stay in the arena: when a program first runs, or a bucket is left."""
        return self._need_open().settled

    def lanes(self) -> dict[str, Traffic]:
        """What each lane has moved, and how long it was busy."""
        return self._need_open().lanes()

    def close(self) -> None:
        """Ends transfers and gives back memory and files; a second call does nothing."""
        memory, self._memory, self._usable = self._memory, None, False
        if memory is not None:
            memory.close()
            for run in self._runs.values():
                run.close()
            self._runs.clear()
            del self._arena

    def _need_open(self) -> DecoderMemory:
        if self._memory is None:
            raise Closed("this was closed: ask it before, or call decode() again")
        return self._memory

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, name: str, ids: Any) -> Any:
        memory = self._need_open()
        if not self._usable:
            raise Closed("this failed half-way so that its state is lost: call decode() again")
        past, tokens = self.length, ids.shape[1]
        room = self._room(past + tokens)
        bucket = self._plan(name, room)
        self._usable, whole = False, False
        try:
            memory.begin(name, bucket, past, tokens)
            if (name, room) not in self._runs:
                self._runs[name, room] = executor_of(bucket, self.longest, arena_bytes(self._arena), memory)
            run = self._runs[name, room]
            run.grow(tokens if name == FIRST else past)
            (logits,) = run.run({bucket.growth.ids: ids})
            whole = True
        finally:
            self._usable = whole or memory.abandon()
        self.length = past + tokens
        return logits

    def _plan(self, name: str, room: int) -> BucketPlan:
        found = self._plans.get((name, room))
        if found is None:
            found = plan_growth(self._growths[name], room, self._arena_bytes, **self._asked)
            self._plans[name, room] = found
        return found

    def _room(self, tokens: int) -> int:
        """The tokens that the bucket of a context has room for."""
        room = self._up(SMALLEST)
        while room < tokens:
            room *= 2
        return min(room, self._up(self.longest))

    def _up(self, tokens: int) -> int:
        return -(-tokens // self._grain) * self._grain

    def _ids(self, tokens: Any) -> Any:
        ids = torch.as_tensor(tokens)
        if ids.dim() == 1:
            ids = ids[:, None] if self.batch > 1 or len(ids) == 1 else ids[None]
        if ids.dim() != 2 or ids.shape[0] != self.batch or ids.is_floating_point():
            raise BadInput(f"tokens are whole numbers of {self.batch} sequences, got {ids.dtype} {tuple(ids.shape)}")
        return ids


def decode(
    model: Any,
    budget: str | int,
    *,
    longest: int,
    batch: int = 1,
    chunk: int | None = None,
    kv: Tier = "dram",
    weights: Any = None,
    fabric: str | Fabric | Rates = "local",
    time_limit: float = 10.0,
    cache: bool = True,
    folder: Path | str | None = None,
) -> Decoder:
    """A causal language model of transformers that generates within `budget` bytes of memory.

    Contexts have up to `longest` tokens. What of weights, keys and values does not fit comes from below while others
    compute: keys and values from host memory, or flash (`kv`), weights from flash. Weights are the model's, or those of
    the checkpoint at the path `weights`. `chunk`: a prompt goes through the model in pieces of so many tokens, the
    first is shorter; by default all at once, which takes the most memory. Logits and tokens are those of transformers'
    own `DynamicCache` with the same pieces, bit for bit. The rest is as for plan(). NoRoom if the budget is too small.
    """
    if kv not in ("dram", "flash"):
        raise BadInput(f"keys and values live in 'dram' or on 'flash', got kv={kv!r}")
    chunk = min(chunk or longest, longest)
    if chunk < 4 or batch < 1 or 0 < longest - chunk < 4:
        raise BadInput(
            f"longest and chunk are 4 tokens or more, and chunk is longest or at least 4 less, batch is 1 or more; got "
            f"longest={longest}, chunk={chunk}, batch={batch}"
        )
    return Decoder(
        model, parse_size(budget), longest=longest, batch=batch, chunk=chunk, kv=kv,
        weights=weights, rates=rates_of(fabric), time_limit=time_limit, cache=cache, folder=folder,
    )  # fmt: skip
