"""Measuring operators: how long each takes here, and what torch takes for it outside the arena.

Layers repeat, so calls that do the same on other storages are measured once, each alone on made-up values: no weights
are needed, and little more memory than one operator touches. Weights and states come from memory when their turn comes,
not from a cache, so caches are swept before each time that is taken; what an operator before has made is touched again.
All are measured in turn, in several rounds: what disturbs a machine lasts longer than one operator. Of a round the
shorter time counts, of all rounds the median. What an operator allocates is counted by torch's profiler, at the
allocator itself; what libraries take from the system on their own (packing buffers of matrix products) is not seen.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload._call import Call, View, views_of
from openshelf.offload._captured import Captured
from openshelf.offload._kernels import Instruction, instruction, workspace_of
from openshelf.offload._torch import torch

ALIGNMENT = 64
TIMED = 2  # runs of an operator in a round, after one that warms up
LARGE = 1 << 20  # bytes of a storage that a cache would matter for
SWEPT = 64 << 20  # larger than the caches of most processors


def measure(captured: Captured, rounds: int = 3) -> Captured:
    """The same program with the seconds of every operator, and `outside` as found. Random state is as before."""
    if rounds < 1:
        raise BadInput(f"operators are measured in 1 or more rounds, got rounds={rounds}")
    for rule in captured.updates.rules if captured.updates is not None else ():
        rule.begin(2)
    sizes = [storage.nbytes for storage in captured.program.storages]
    signatures = [call.signature for call in captured.calls]
    calls = dict(zip(signatures, captured.calls, strict=True))
    most = max((_places(call, sizes)[1] + workspace_of(call)[0] for call in calls.values()), default=0)
    arena, sweep = torch.empty(most, dtype=torch.uint8), torch.empty(SWEPT, dtype=torch.uint8)
    given = {storage.index for storage in captured.program.storages if storage.given and storage.nbytes >= LARGE}
    seconds: dict[Any, list[float]] = {signature: [] for signature in calls}
    outside: dict[Any, int] = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for _ in range(rounds):
            for signature, call in calls.items():
                made = _bound(call, sizes, arena)
                before = _cold(call, sizes, arena, sweep, given)
                seconds[signature].append(_seconds(made, before) if made else 0.0)
                if signature not in outside:
                    outside[signature] = _outside(made) if made else 0
    ops = tuple(
        dataclasses.replace(op, seconds=statistics.median(seconds[signature]))
        for op, signature in zip(captured.program.ops, signatures, strict=True)
    )
    return dataclasses.replace(
        captured,
        program=dataclasses.replace(captured.program, ops=ops),
        outside=tuple(outside[signature] for signature in signatures),
    )


def _places(call: Call, sizes: list[int]) -> tuple[dict[int, int], int]:
    """Where each storage of a call is while it is alone in an arena, and where they end."""
    places: dict[int, int] = {}
    at = 0
    for view in views_of((call.args, call.kwargs, call.makes)):
        if view.storage not in places:
            places[view.storage] = at
            at += -(-sizes[view.storage] // ALIGNMENT) * ALIGNMENT
    return places, at


def _bound(call: Call, sizes: list[int], arena: Any) -> Instruction | None:
    places, end = _places(call, sizes)

    def tensor(view: View) -> Any:
        return _at(arena, places[view.storage], view)

    def scratch(dtype: Any, count: int) -> list[Any]:
        length = workspace_of(call)[0] // max(count, 1) // dtype.itemsize
        return [_at(arena, end, View(-1, dtype, (length,), (1,), one * length)) for one in range(count)]

    for view in views_of((call.args, call.kwargs)):
        _fill(tensor(view))
    if call.kernel is torch.ops.aten._grouped_mm.default:  # all rows belong to some group
        rows = call.args[0].shape[-1 if len(call.args[1].shape) == 2 else 0]
        groups = tensor(call.args[2])
        groups.copy_(torch.arange(1, len(groups) + 1) * rows // len(groups))
    return instruction(call, tensor, scratch)


def _at(arena: Any, offset: int, view: View) -> Any:
    first = (arena.storage_offset() + offset) // view.dtype.itemsize + view.offset
    made = torch.empty(0, dtype=view.dtype)
    return made.set_(arena.untyped_storage(), first, view.shape, view.strides)


def _fill(tensor: Any) -> None:
    """Values that every operator can take: integers may be indices, so they are 0."""
    if tensor.is_floating_point():
        tensor.fill_(0.5)
    else:
        tensor.zero_()


def _cold(call: Call, sizes: list[int], arena: Any, sweep: Any, given: set[int]) -> Callable[[], None]:
    """What to do before an operator is timed: its large given storages are not in a cache then, all others are."""
    views = list(views_of((call.args, call.kwargs)))
    if all(view.storage not in given for view in views):
        return lambda: None
    places = _places(call, sizes)[0]
    others = [_at(arena, places[view.storage], view) for view in views if view.storage not in given]

    def before() -> None:
        sweep.zero_()
        for one in others:
            one.sum()

    return before


def _seconds(made: Instruction, before: Callable[[], None]) -> float:
    function, args, kwargs = made
    function(*args, **kwargs)
    times = []
    for _ in range(TIMED):
        before()
        begin = time.perf_counter()
        function(*args, **kwargs)
        times.append(time.perf_counter() - begin)
    return min(times)


def _outside(made: Instruction) -> int:
    """The most bytes that torch's allocator had handed out at one time; of several threads, the sum."""
    function, args, kwargs = made
    profiler = torch.autograd
    no_more = torch._C._profiler._ExperimentalConfig()
    profiler._enable_profiler_legacy(
        profiler.ProfilerConfig(profiler.ProfilerState.CPU, False, True, False, False, False, no_more)
    )
    try:
        function(*args, **kwargs)
    finally:
        threads = profiler._disable_profiler_legacy()
    total = 0
    for events in threads:
        changes = [event.cpu_memory_usage() for event in events if event.kind() == "memory_alloc"]
        total += max(itertools.accumulate(changes, initial=0))
    return total
