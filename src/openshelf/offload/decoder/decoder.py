"""Decoding: a language model that generates within a budget, its KV cache in a tier below, brought back layer by layer.

Three kinds of programs: one begins a context with a prompt, one appends a piece of a long prompt, one appends a token.
Each is captured once for all lengths, or for each range of lengths in which the model does the same
(`capture/affine.py`), and planned for each bucket of lengths when that is first needed. Plans for the longest are made
at once, so that what the run takes is known before it begins. All share one arena.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena
from openshelf._sizes import seconds_of, whole
from openshelf.errors import BadInput, Closed, NoRoom
from openshelf.fabric import Fabric
from openshelf.offload.decoder.executor import executor_of
from openshelf.offload.decoder.kv_tier import KVTier
from openshelf.offload.decoder.memory import DecoderMemory, all_weights
from openshelf.offload.decoder.model import SHORT, begins_anew, forced_token, has_encoder, start_of, without_weights
from openshelf.offload.decoder.plan import BucketPlan, Growth, plan_growth
from openshelf.offload.decoder.programs import FIRST, MORE, NEXT, Programs
from openshelf.offload.decoder.prompts import check_arguments, check_padding, ids_of
from openshelf.offload.measure.transfers import rates_of
from openshelf.offload.move.mover import Traffic
from openshelf.offload.planner.plan import Plan
from openshelf.offload.program.rates import Rates, Tier
from openshelf.offload.program.torch import arena_bytes, torch
from openshelf.offload.run.executor import Executor
from openshelf.offload.weights.source import need_weights, packed_from
from openshelf.space import format_size, parse_size


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
        self.batch, self.longest, self.length = batch, longest, 0
        self._model, self._chunk, self._kv, self._folder = model, chunk, kv, folder
        self._measuring = time_limit / 2  # the other half is for the search
        self._sets: dict[int | None, Programs] = {}  # by the length of the source
        self._programs = self._made(longest if has_encoder(model) else None)
        outside = self._programs.outside
        arena = min(self._programs.enough, (budget - outside) // 4096 * 4096)
        if arena < (least := self._programs.least):
            raise NoRoom(
                f"a budget of {format_size(budget)} is too small for contexts of {longest} tokens, prompts in pieces "
                f"of {chunk}: the least that works is {least + outside} bytes; or give a smaller `chunk` or `longest`"
            )
        self.peak = arena + outside
        self._asked: dict[str, Any] = {"rates": rates, "kv": kv, "time_limit": time_limit, "cache": cache}
        self._arena_bytes = arena
        self._plans: dict[tuple[Growth, int], BucketPlan] = {}
        self._runs: dict[tuple[Growth, int], Executor] = {}
        for several in self._programs.kinds.values():
            self._plan(several.all[-1], self._programs.room(several.all[-1].most()))
        self._packed = packed_from(all_weights(self._programs.all), model if weights is None else weights, folder)
        # Lengths that come later are captured then, without the model's weights: whoever gave it may let go of it.
        self._model = self._programs.growing.model = without_weights(model)
        self._arena = DeviceArena(arena)
        self._memory: DecoderMemory | None = self._new_memory()
        self._usable = True

    def prefill(self, tokens: Any) -> Any:
        """Begins a context with these tokens, (length,) or (batch, length); returns the logits that come after them.

        A model with an encoder takes them as its source, and begins a context with its own first token.
        """
        ids = ids_of(tokens, self.batch)
        check_padding(self._model, ids)
        return self._begin(ids)

    def _begin(self, ids: Any) -> Any:
        count = ids.shape[1]
        if not 0 < count <= self.longest:
            raise BadInput(f"a prompt has 1 to longest={self.longest} tokens, got {count}")
        self._need_open()
        self.length = 0
        if self._programs.source is not None:
            self._use(count)
            return self._run(FIRST, ids)
        begin = count % self._chunk or self._chunk
        logits = self._run(FIRST, ids[:, :begin])
        for at in range(begin, count, self._chunk):
            logits = self._run(MORE, ids[:, at : at + self._chunk])
        return logits

    def step(self, token: Any) -> Any:
        """Appends a token to each sequence, (batch,) or (batch, 1); returns the logits that come after it."""
        ids = ids_of(token, self.batch)
        if ids.shape[1] != 1:
            raise BadInput(f"a step appends one token to each of {self.batch} sequences, got {tuple(ids.shape)}")
        if self.length >= self.longest:
            raise NoRoom(f"the context is full: {self.length} tokens, and longest={self.longest}; begin with more")
        return self._run(NEXT, ids)

    def generate(
        self,
        tokens: Any = None,
        count: int | None = None,
        *,
        stop: int | None = None,
        choose: Callable[[Any], Any] | None = None,
        **others: Any,
    ) -> Any:
        """The prompt and up to `count` tokens more, (batch, length): the likeliest, or what `choose` makes of logits.

        Of a model with an encoder, its own first token and up to `count` more. Where its generation config forces the
        first or the last of these, it is that.

        Ends early when all sequences have come to the token `stop`, which fills those that ended before others. Other
        arguments of transformers' generate() are refused.
        """
        check_arguments(others)
        if tokens is None or count is None:
            raise BadInput("generate(tokens, count) needs both: the prompt, and how many tokens more")
        if whole(count, "count") < 0:
            raise BadInput(f"count is how many tokens to generate, got {count}")
        choose = choose or (lambda logits: logits.argmax(-1))
        prompt = ids_of(tokens, self.batch)
        with_encoder = self._programs.source is not None
        begun = torch.full((self.batch, 1), start_of(self._model)) if with_encoder else prompt
        if begun.shape[1] + count - 1 > self.longest:
            raise NoRoom(
                f"a prompt of {begun.shape[1]} tokens and {count} more do not fit longest={self.longest}: ask for "
                "fewer, or call decode() with more"
            )
        check_padding(self._model, prompt)
        logits, found = self._begin(prompt), [begun]
        ended = torch.zeros(self.batch, dtype=torch.bool)
        for number in range(count):
            token = choose(logits)
            forced = forced_token(self._model, begun.shape[1] + number, number == count - 1)
            if forced is not None:
                token = torch.full_like(token, forced)
            if stop is not None:
                token = torch.where(ended, stop, token)
                ended |= token == stop
            found.append(token[:, None])
            if number == count - 1 or bool(ended.all()):
                break
            anew = self.length == begins_anew(self._model)
            logits = self._begin(torch.cat(found, 1)) if anew else self.step(token)
        return torch.cat(found, 1)

    def plan(self, length: int | None = None) -> Plan:
        """The plan by which the next token is made, or the one after `length`; without what stays in the arena."""
        return self._next(length).plan

    def stays(self, length: int | None = None) -> dict[str, int]:
        """What stays in the arena from token to token, in bytes: by the kind of storage."""
        bucket = self._next(length)
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
        past, programs = self.length, self._programs
        tokens = 1 if programs.source is not None else ids.shape[1]
        growth, room = programs.kinds[name].at(tokens if name == FIRST else past), programs.room(past + tokens)
        bucket = self._plan(growth, room)
        self._usable, whole = False, False
        try:
            memory.begin(bucket, past, tokens)
            if (growth, room) not in self._runs:
                self._runs[growth, room] = executor_of(bucket, self.longest, arena_bytes(self._arena), memory)
            run = self._runs[growth, room]
            run.grow(tokens if name == FIRST else past)
            (logits,) = run.run({growth.ids: ids})
            memory.commit()
            whole = True
        finally:
            self._usable = whole or memory.abandon()
        self.length = past + tokens
        return logits

    def _next(self, length: int | None) -> BucketPlan:
        past = min(max(SHORT, self.length if length is None else length), self.longest - 1)
        return self._plan(self._programs.kinds[NEXT].at(past), self._programs.room(past + 1))

    def _plan(self, growth: Growth, room: int) -> BucketPlan:
        found = self._plans.get((growth, room))
        if found is None:
            found = self._plans[growth, room] = plan_growth(growth, room, self._arena_bytes, **self._asked)
        return found

    def _made(self, source: int | None) -> Programs:
        if source not in self._sets:
            self._sets[source] = Programs(self._model, self.batch, self.longest, self._chunk, self._measuring, source)
        return self._sets[source]

    def _use(self, source: int) -> None:
        """The next source has so many tokens: its programs have the arena from now on."""
        if self._programs.source == source:
            return
        programs = self._made(source)
        for run in self._runs.values():
            run.close()
        self._runs.clear()
        self._need_open().close()
        self._programs = programs
        self._memory = self._new_memory()

    def _new_memory(self) -> DecoderMemory:
        programs = self._programs
        longest = programs.up(self.longest)
        tier = KVTier(programs.states, longest, self._chunk, self._kv, self._arena, self._folder)
        return DecoderMemory(self._packed, self._arena, tier, self._folder)


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
    if not isinstance(kv, str) or kv not in ("dram", "flash"):
        raise BadInput(f"keys and values live in 'dram' or on 'flash', got kv={kv!r}")
    longest, batch, time_limit = whole(longest, "longest"), whole(batch, "batch"), seconds_of(time_limit, "time_limit")
    chunk = longest if chunk is None else min(whole(chunk, "chunk"), longest)
    if chunk < 4 or batch < 1 or 0 < longest - chunk < 4:
        raise BadInput(
            f"longest and chunk are 4 tokens or more, and chunk is longest or at least 4 less, batch is 1 or more; got "
            f"longest={longest}, chunk={chunk}, batch={batch}"
        )
    need_weights(model, weights)
    return Decoder(
        model, parse_size(budget), longest=longest, batch=batch, chunk=chunk, kv=kv,
        weights=weights, rates=rates_of(fabric), time_limit=time_limit, cache=cache, folder=folder,
    )  # fmt: skip
