"""Module by module: weights come into an arena before the module that uses them runs, without a plan.

For models that no program can hold: what they do depends on values, or a user's hooks have to run. The first call goes
through the model as it is and notes which module uses which weights, and in which order. Then weights leave memory.
Ever after each module waits for its own, and the next ones in that order are on their way meanwhile; what is used last
of all leaves first. If a call goes another way, modules that come unexpected are read when they come, and the order is
found again from there.

Only weights are in the arena: what modules compute is torch's, and not counted. No gradients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena
from openshelf.errors import CaptureFailed, NoRoom
from openshelf.offload.capture.hooks import need_no_backward_hooks
from openshelf.offload.capture.reachable import tensors_in
from openshelf.offload.capture.tree import PLAIN, flatten, refilled
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover, Traffic
from openshelf.offload.planner.offsets.free_list import FreeList
from openshelf.offload.program.lifetimes import padded
from openshelf.offload.program.torch import arena_bytes, torch
from openshelf.offload.run.emptied import Forward, values_of
from openshelf.offload.run.module_uses import Weights, note_uses
from openshelf.offload.weights.pack import pack_state
from openshelf.space import format_size

AHEAD = 64  # uses that are looked at to find what to read next


class ByModule:
    """Calls a model with its weights in an arena of `budget` bytes. Not thread-safe."""

    def __init__(self, model: Any, budget: int, folder: Path | str | None, forward: Forward | None = None) -> None:
        self._model, self._budget, self._folder = model, padded(budget), folder
        self._weights = Weights(model)
        self._forward = forward or Forward(model)
        self._mover: Mover | None = None
        self._hooks: list[Any] = []
        need_no_backward_hooks(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            if self._mover is None:
                with self._forward.answers():
                    result, self._order, self._needs, deepest = note_uses(self._model, self._weights, args, kwargs)
                result = self._own(result, args, kwargs, lambda one: self._weights.number(one) is not None)
                self._leave_memory(deepest)
                return result
            self._position = 0
            try:
                with self._forward.answers():
                    result = self._model(*args, **kwargs)
                return self._own(result, args, kwargs, self._in_arena)
            except BaseException:  # hooks that count uses may not have run
                self._begin_anew()
                raise

    def lanes(self) -> dict[str, Traffic]:
        """What each lane has moved, and how long it was busy."""
        return {} if self._mover is None else self._mover.lanes()

    def _leave_memory(self, deepest: list[tuple[str, ...]]) -> None:
        sizes = self._sizes = [padded(one.nbytes) for one in self._weights.storages]
        most, modules = max(
            (sum(sizes[s] for s in {s for path in paths for s in self._needs[path]}), paths) for paths in deepest
        )
        if most > self._budget:
            raise NoRoom(
                f"a budget of {format_size(self._budget)} is too small: the weights of {modules[-1] or 'the model'} "
                f"and of the modules around it have {most} bytes, which is the least that works"
            )
        first = dict.fromkeys(s for _, uses in self._order for s in uses)
        names = [one.name for one in self._weights.storages]
        packed = self.packed = pack_state(self._weights.state(), [names[s] for s in first], folder=self._folder)
        homes = Homes(self._folder)
        for number, name in enumerate(names):
            homes.packed(number, packed, name)
        arena = DeviceArena(self._budget)
        self._arena, self._mover, self._free = arena_bytes(arena), Mover(homes, arena), FreeList(self._budget)
        self._at: dict[int, int] = {}  # storages in the arena, and their offsets
        self._coming: set[int] = set()
        self._pins: Counter[int] = Counter()
        self._uses: list[list[int]] = [[] for _ in names]  # positions in the order
        for position, (_, uses) in enumerate(self._order):
            for s in uses:
                self._uses[s].append(position)
        self._emptied = self._weights.empty(self._forward)
        for path, module in self._model.named_modules():  # weights are there before other hooks look
            enter = module.register_forward_pre_hook(
                lambda _, args, kwargs, path=path: self._enter(path, args, kwargs), prepend=True, with_kwargs=True
            )
            leave = module.register_forward_hook(lambda *_, path=path: self._leave(path), always_call=True)
            self._hooks += [enter, leave]

    @property
    def is_empty(self) -> bool:
        """Whether the weights have left memory."""
        return self._mover is not None

    def give_back(self) -> None:
        """The model has its weights in memory again, and nobody's hooks."""
        if self._mover is None:
            return
        for hook in self._hooks:
            hook.remove()
        self._begin_anew()
        self._emptied.give_back(values_of(self.packed))
        self._mover.close()
        self._mover = None

    def _begin_anew(self) -> None:
        """Nothing is in the arena, or on its way there."""
        assert self._mover is not None
        self._mover.abandon()
        for s in self._pins:
            self._weights.take(s)
        self._at.clear()
        self._coming.clear()
        self._pins.clear()
        self._free = FreeList(self._budget)

    def _enter(self, path: str, args: Any, kwargs: Any) -> None:
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in (*args, *kwargs.values())):
            raise CaptureFailed(
                f"the module {path or 'of the model itself'!r} was handed a tensor without memory: the code around it "
                "goes by the device of weights that are not in memory then, so it cannot run module by module. Plan "
                "it (offload.plan, offload.wrap without a fallback), or run it as it is"
            )
        needs = self._needs.get(path, ())
        for position in range(self._position, self._position + len(self._order)):
            if self._order[position % len(self._order)][0] == path:
                self._position = position % len(self._order)
                break
        self._pins.update(needs)
        for s in needs:
            if s not in self._at and not self._read(s, -1):
                raise NoRoom(
                    f"{path or 'the model'} needs {self._sizes[s]} bytes in a row for its weights, and what is in use "
                    f"leaves no such room in {format_size(self._budget)}: give a larger budget"
                )
        self._read_ahead()
        assert self._mover is not None
        for s in needs:
            if s in self._coming:
                self._mover.wait(s)
                self._coming.discard(s)
            if self._pins[s] == 1:
                self._weights.put(s, self._arena, self._at[s])

    def _leave(self, path: str) -> None:
        for s in self._needs.get(path, ()):
            self._pins[s] -= 1
            if not self._pins[s]:
                self._weights.take(s)

    def _read_ahead(self) -> None:
        for distance in range(1, min(AHEAD, len(self._order))):
            for s in self._order[(self._position + distance) % len(self._order)][1]:
                if s not in self._at and not self._read(s, distance):
                    return

    def _read(self, s: int, distance: int) -> bool:
        """Begins to read a storage; what is used later than at `distance` may leave for it. False: there is no room."""
        offset = self._free.take(self._sizes[s], high=False)
        while offset is None:
            idle = [one for one in self._at if not self._pins[one]]
            last = max(idle, key=self._distance, default=None)
            if last is None or self._distance(last) <= distance:
                return False
            self._evict(last)
            offset = self._free.take(self._sizes[s], high=False)
        assert self._mover is not None
        self._at[s] = offset
        self._coming.add(s)
        self._mover.begin_read(s, offset)
        return True

    def _evict(self, s: int) -> None:
        assert self._mover is not None
        if s in self._coming:
            self._mover.wait(s)
            self._coming.discard(s)
        self._free.give(self._at.pop(s), self._sizes[s])

    def _distance(self, s: int) -> int:
        """How many uses away the next use of a storage is."""
        uses, count = self._uses[s], len(self._order)
        if not uses:
            return count
        at = bisect_left(uses, self._position + 1)
        return uses[at] - self._position if at < len(uses) else uses[0] + count - self._position

    def _own(self, result: Any, args: Any, kwargs: Any, ours: Callable[[Any], bool]) -> Any:
        """What is a weight itself is copied, in the result and in what was given: its memory is used again."""

        def leaves(tensor: Any) -> bool:
            return type(tensor) in PLAIN and not tensor.is_meta and ours(tensor)

        if not any(map(leaves, tensors_in((result, args, kwargs)))):
            return result
        flat = flatten((result, args, kwargs))
        return refilled(flat, [one.detach().clone() if leaves(one) else one for one in flat.leaves])[0]

    def _in_arena(self, tensor: Any) -> bool:
        return bool(tensor.untyped_storage().data_ptr() == self._arena.untyped_storage().data_ptr())
