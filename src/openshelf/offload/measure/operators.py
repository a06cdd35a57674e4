"""Measuring operators: how long each takes here, and what torch takes for it outside the arena.

An operator takes longer in a program than alone: what the one before it made is in a cache, weights and states are not,
and threads and code are cold. So all are run in the order of the program, on made-up values: no weights are needed.
Layers repeat, so of calls that do the same on other storages a few are run. Storages are in a ring, much larger than
caches, and as large as what one operator needs: what was used a while ago has to come from memory, as when the plan is
run, and more than a budget that a plan can be made for is not taken. Of some
rounds the median counts. What an operator allocates is counted by torch's profiler, at the allocator itself; what
libraries take from the system on their own (packing buffers of matrix products) is not seen.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from openshelf._core import DeviceArena
from openshelf.errors import BadInput, CaptureFailed
from openshelf.offload.capture.captured import Captured
from openshelf.offload.program.call import Call, OwnKernel, View, map_views, span, views_of
from openshelf.offload.program.lifetimes import padded
from openshelf.offload.program.out_forms import (
    Instruction,
    OtherStrides,
    check_results,
    instruction,
    kernel_of,
    workspace_of,
)
from openshelf.offload.program.progress import shown
from openshelf.offload.program.torch import arena_bytes, torch

RING = 128 << 20  # larger than the caches of most processors
ENOUGH_S = 1.5  # what takes longer than this is measured in two rounds, or a few
aten: Any = torch.ops.aten
# They read as many numbers as other numbers say.
BY_LENGTHS = {aten._ctc_loss.default, aten._ctc_loss.Tensor, aten._ctc_loss_backward.default,
              aten._ctc_loss_backward.Tensor}  # fmt: skip
MASKS = (torch.bool, torch.uint8)
SAME = 3  # of calls that do the same, so many are run


@shown("timing its operators")
def measured(captured: Captured, rounds: int = 5, time_limit: float = math.inf, *, formats: bool = False) -> Captured:
    """The same program with the seconds of every operator, and `outside` as found. Random state is as before.

    Every kind of operator is run, whatever the time: how torch lays out results and what it takes has to be known.
    Rounds end after `time_limit` seconds: `hurried` are those that were in none, timed when they ran first.
    `formats`: OtherStrides also for results of other memory formats, for callers that capture again.
    """
    if rounds < 1:
        raise BadInput(f"operators are measured in 1 or more rounds, got rounds={rounds}")
    for rule in captured.updates.rules if captured.updates is not None else ():
        rule.begin(2)
    until = time.perf_counter() + time_limit
    signatures = [call.signature for call in captured.calls]
    calls = dict(zip(signatures, captured.calls, strict=True))
    with generators_as_before(captured), torch.no_grad():
        made = _made(captured, signatures, formats)
        found = _run_once(made, calls)
        taken = _run_in_rounds([one for one in made if one[0] not in found.unknown], rounds, until)
    seconds = {signature: statistics.median(taken.get(signature) or [found.seconds[signature]]) for signature in calls}
    ops = tuple(
        dataclasses.replace(op, seconds=seconds[signature])
        for op, signature in zip(captured.program.ops, signatures, strict=True)
    )
    late = [signature for signature in calls if signature not in taken and signature not in found.unknown]
    return dataclasses.replace(
        captured,
        program=dataclasses.replace(captured.program, ops=ops),
        outside=tuple(found.outside[signature] for signature in signatures),
        hurried=tuple(f"{calls[signature].name} at {calls[signature].where}" for signature in late),
    )


def _timed(call: Call) -> bool:
    """Whether it can run on made-up values: not if what it makes, or reads, follows from the values."""
    kernel = call.kernel
    if isinstance(kernel, OwnKernel):
        return kernel.timed
    by_value = kernel is not aten.index.Tensor or any(view.dtype in MASKS for view in views_of(call.args[1]))
    return kernel not in BY_LENGTHS and not (torch.Tag.dynamic_output_shape in kernel.tags and by_value)


@dataclasses.dataclass
class _Once:
    """What one run of each operator has shown, by signature; `unknown`: made-up values are not what it expects."""

    seconds: dict[Any, float] = dataclasses.field(default_factory=dict)
    outside: dict[Any, int] = dataclasses.field(default_factory=dict)
    unknown: set[Any] = dataclasses.field(default_factory=set)


def _run_once(made: list[Made], calls: dict[Any, Call]) -> _Once:
    """OtherStrides, with all that was found, if torch lays results out otherwise than was captured."""
    found, other, why = _Once(), dict[Any, Any](), ""
    for signature, before, one, _, plainly in made:
        if signature in found.outside:
            continue
        found.seconds[signature] = found.outside[signature] = 0
        if not _timed(calls[signature]):
            found.outside[signature] = workspace_of(calls[signature])[1]
            found.unknown.add(signature)
            continue
        _set(before)
        try:
            plainly()
            begin = time.perf_counter()
            if one:
                found.outside[signature] = taken_outside(one)
                found.seconds[signature] = time.perf_counter() - begin
        except OtherStrides as error:
            why = str(error)
            other.update(error.found)
        except RuntimeError:
            found.outside[signature] = workspace_of(calls[signature])[1]
            found.unknown.add(signature)
        else:
            _check_forms(calls[signature], one)
    if other:
        raise OtherStrides(why, other)
    return found


def _run_in_rounds(made: list[Made], rounds: int, until: float) -> dict[Any, list[float]]:
    """The seconds of each operator in each round that there was time for."""
    taken: dict[Any, list[float]] = collections.defaultdict(list)
    _round(made, until)  # warms up
    begun = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - begun > ENOUGH_S:
            break
        for signature, seconds in _round(made, until).items():
            taken[signature].append(statistics.mean(seconds))
    return taken


@contextlib.contextmanager
def generators_as_before(captured: Captured) -> Iterator[None]:
    """torch's generator, and the model's own, are after it as they were before it."""
    given = {
        id(one): one for call in captured.calls for one in call.kwargs.values() if isinstance(one, torch.Generator)
    }
    states = [(one, one.get_state()) for one in given.values()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for one, state in states:
            one.set_state(state)


Values = list[tuple[Any, Any]]  # tensors, and what they are set to
# Signature; before; what is run; after; what checks that torch itself would make results of the same strides.
Made = tuple[Any, Values, Instruction | None, Values, Callable[[], None]]


def _made(captured: Captured, signatures: list[Any], formats: bool) -> list[Made]:
    """What is run, in order, bound to places of a ring."""
    sizes, touched = _sizes(captured), [_touched(call) for call in captured.calls]
    ring = _Ring(_ring_bytes(captured))
    memory = DeviceArena(max(ring.nbytes + _work(captured), 4096))
    arena = arena_bytes(memory)
    arena[: arena.numel() // 4 * 4].view(torch.float32).fill_(0.5)
    runs: collections.Counter[Any] = collections.Counter()
    made: list[Made] = []
    for call, signature, storages in zip(captured.calls, signatures, touched, strict=True):
        runs[signature] += 1
        if runs[signature] <= SAME:
            places = ring.places({storage: sizes[storage] for storage in storages})
            one = _bound(call, arena, places, ring.nbytes)
            before, after = _integers(call, arena, places), _floats(call, arena, places)
            made.append((signature, before, one, after, functools.partial(_check_plain, call, arena, places, formats)))
    return made


def measured_in(captured: Captured) -> int:
    """Bytes that measuring takes at most: the ring, and the results that torch itself makes of one operator."""
    results = [sum(span(view) * view.dtype.itemsize for view in views_of(call.makes)) for call in captured.calls]
    return _ring_bytes(captured) + _work(captured) + max(results, default=0) + max(captured.outside, default=0)


def _sizes(captured: Captured) -> list[int]:
    return [padded(storage.nbytes) for storage in captured.program.storages]


def _touched(call: Call) -> dict[int, None]:
    return dict.fromkeys(view.storage for view in views_of((call.args, call.kwargs, call.makes)))


def _ring_bytes(captured: Captured) -> int:
    sizes = _sizes(captured)
    most = max((sum(sizes[storage] for storage in _touched(call)) for call in captured.calls), default=0)
    return min(sum(sizes), max(RING, most))


def _work(captured: Captured) -> int:
    return max((workspace_of(call)[0] for call in captured.calls), default=0)


class _Ring:
    """Places of storages: the next one begins where the last one ended; what is in the way loses its place."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._at = 0
        self._placed: dict[int, tuple[int, int]] = {}

    def places(self, sizes: dict[int, int]) -> dict[int, int]:
        """Where these storages are, all at the same time."""
        for storage, size in sizes.items():
            if storage not in self._placed:
                self._place(storage, size)
        if not all(storage in self._placed for storage in sizes):  # one was in the way of another
            self._placed.clear()
            self._at = 0  # from the beginning there is room for all of them
            for storage, size in sizes.items():
                self._place(storage, size)
        return {storage: self._placed[storage][0] for storage in sizes}

    def _place(self, storage: int, size: int) -> None:
        begin = self._at if self._at + size <= self.nbytes else 0
        for other, (first, end) in list(self._placed.items()):
            if first < begin + size and begin < end:
                del self._placed[other]
        self._placed[storage] = (begin, begin + size)
        self._at = begin + size


def _integers(call: Call, arena: Any, places: dict[int, int]) -> Values:
    """Integers that are read may be indices, so they are 0; but those that say which rows a group has."""
    found: Values = [
        (_at(arena, places[view.storage], view), 0)
        for view in views_of((call.args, call.kwargs))
        if not view.dtype.is_floating_point and not view.dtype.is_complex
    ]
    if call.kernel is aten._grouped_mm.default:
        rows = call.args[0].shape[-1 if len(call.args[1].shape) == 2 else 0]
        groups = _at(arena, places[call.args[2].storage], call.args[2])
        found.append((groups, torch.arange(1, len(groups) + 1) * rows // len(groups)))
    return found


def _floats(call: Call, arena: Any, places: dict[int, int]) -> Values:
    """What is written becomes as it was: numbers that are all but zero would take longer."""
    changed = [view for view in views_of((call.args, call.kwargs)) if view.storage in call.changes]
    return [
        (_at(arena, places[view.storage], view), 0.5)
        for view in (*changed, *views_of(call.makes))
        if view.dtype.is_floating_point
    ]


def _set(values: Values) -> None:
    for tensor, value in values:
        if isinstance(value, torch.Tensor):
            tensor.copy_(value)
        else:
            tensor.fill_(value)


def _bound(call: Call, arena: Any, places: dict[int, int], work: int) -> Instruction | None:
    def tensor(view: View) -> Any:
        return _at(arena, places[view.storage], view)

    def scratch(dtype: Any, count: int) -> list[Any]:
        length = workspace_of(call)[0] // max(count, 1) // dtype.itemsize
        return [_at(arena, work, View(-1, dtype, (length,), (1,), one * length)) for one in range(count)]

    return instruction(call, tensor, scratch)


def _at(arena: Any, offset: int, view: View) -> Any:
    end = offset + (view.offset + span(view)) * view.dtype.itemsize
    room = torch.from_numpy(arena.numpy()[offset:end])  # of its own: what would make it larger is an error
    return torch.empty(0, dtype=view.dtype).set_(room.untyped_storage(), view.offset, view.shape, view.strides)


def _check_plain(call: Call, arena: Any, places: dict[int, int], formats: bool) -> None:
    """A kernel that is given where to write does as it is told: would it have chosen the strides that were captured?"""
    pairs = [
        (number, _at(arena, places[view.storage], view)) for number, view in enumerate(call.makes) if view is not None
    ]
    if pairs:
        args, kwargs = map_views((call.args, call.kwargs), lambda view: _at(arena, places[view.storage], view))
        result = kernel_of(call)(*args, **kwargs)
        check_results(call, pairs, result if isinstance(result, (list, tuple)) else (result,), formats=formats)


def _check_forms(call: Call, made: Instruction | None) -> None:
    """A kernel that was given where to write must have left shape and strides as they are."""
    wanted = [view for view in call.makes if view is not None]
    outs = [one for one in made[2].values() if isinstance(one, torch.Tensor)][-len(wanted) :] if made and wanted else []
    for view, out in zip(wanted, outs, strict=False):
        same = len(outs) == len(wanted) and (tuple(out.shape), out.dtype) == (view.shape, view.dtype)
        if same and out.stride() != view.strides and out.numel():
            raise CaptureFailed(
                f"{call.where}: {call.name} writes its result with strides {out.stride()}, captured were "
                f"{view.strides}: the operator's fake form differs from the real one"
            )


def _round(made: list[Made], until: float) -> dict[Any, list[float]]:
    seconds: dict[Any, list[float]] = collections.defaultdict(list)
    clock = time.perf_counter
    for signature, before, one, after, _ in made:
        if one is None:
            seconds[signature].append(0.0)
            continue
        if clock() > until:
            continue
        _set(before)
        function, args, kwargs = one
        begin = clock()
        function(*args, **kwargs)
        seconds[signature].append(clock() - begin)
        _set(after)
    return seconds


def taken_outside(made: Instruction) -> int:
    """Runs it: the most bytes that torch's allocator had handed out at one time; of several threads, the sum."""
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
