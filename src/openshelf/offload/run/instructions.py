"""A plan's steps as a flat list of functions with their arguments, made once and run many times.

All that can be known before is done before: where a storage is, the tensors that are views of it, which form of an
operator to call. At run time nothing is looked up or decided, and what ran is counted against the plan. Plans are
proved right by `check_steps` when they are made or read, so they are not doubted here.

Inputs are copied from the caller's tensors, outputs to new ones, and from these if they are needed again; all other
storages are moved by a mover. So are inputs once the program has changed them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from openshelf.errors import BadInput, OpenshelfError
from openshelf.offload.planner.replay import ARRIVE, LAND, READ, RUN, WRITE, Replay
from openshelf.offload.program.out_forms import Instruction
from openshelf.offload.program.program import Program
from openshelf.offload.program.steps import Step
from openshelf.offload.program.torch import torch


class Moves(Protocol):
    """Brings storages from their homes into the arena, and back. Steps say when.

    At most one transfer of a storage is under way at a time. `reads` and `writes` count transfers that were begun.
    """

    @property
    def reads(self) -> int: ...
    @property
    def writes(self) -> int: ...
    def begin_read(self, storage: int, offset: int) -> None: ...
    def wait(self, storage: int) -> None: ...
    def begin_write(self, storage: int, offset: int) -> None: ...
    def wait_written(self, storage: int) -> None: ...


@runtime_checkable
class Appends(Protocol):
    """Moves that also write what an operator has added to a storage through to its home, and count that."""

    @property
    def appends(self) -> int: ...
    def append(self, storage: int, offset: int) -> None: ...


class Instructions(ABC):
    """Steps bound to an arena, a tensor of bytes that begins at a multiple of 64. Not thread-safe: there is one."""

    def __init__(self, program: Program, arena: Any, mover: Moves) -> None:
        if arena.dtype != torch.uint8 or arena.dim() != 1 or arena.data_ptr() % 64:
            raise BadInput("an arena is a tensor of bytes, of one dimension, that begins at a multiple of 64")
        self._program, self._arena, self._mover = program, arena, mover
        self._instructions: list[Instruction] = []
        self._operators: dict[int, int] = {}  # which instructions are of which operator
        self._planned: dict[str, int] = {}  # counts of the mover

    @abstractmethod
    def _called(self, op: int, places: Mapping[int, int], workspace: int) -> list[Instruction]:
        """Of an operator; `places` has all storages in the arena now, but those that stay from call to call."""

    @abstractmethod
    def _input(self, storage: int, offset: int) -> Instruction:
        """Copies the caller's tensor into the arena."""

    @abstractmethod
    def _output(self, storage: int, offset: int) -> Instruction:
        """Copies a result out of the arena."""

    @abstractmethod
    def _output_again(self, storage: int, offset: int) -> Instruction:
        """Copies a result that was handed out, and that another operator reads, back into the arena."""

    def _bind(self, steps: Iterable[Step]) -> None:
        changed: set[int] = set()  # inputs whose bytes are not the caller's any more
        replay = Replay(self._program, steps)
        for event, which, offset in replay:
            if event == RUN:
                made = self._called(which, replay.at, offset)
                self._operators.update((len(self._instructions) + number, which) for number in range(len(made)))
                self._instructions += made
                continue
            fed = self._program.storages[which].kind == "input" and which not in changed
            self._instructions += self._moved(event, which, offset, fed)
            if event == WRITE:
                changed.add(which)
        begins = {"reads": self._mover.begin_read, "writes": self._mover.begin_write}
        if isinstance(self._mover, Appends):
            begins["appends"] = self._mover.append
        for count, begin in begins.items():
            self._planned[count] = sum(function == begin for function, _, _ in self._instructions)

    def _moved(self, event: int, storage: int, offset: int, fed: bool) -> list[Instruction]:
        """Of an event that is no operator: one, or none for what only matters to the plan."""
        mover, output = self._mover, self._program.storages[storage].kind == "output"
        if event == READ and fed:
            return [self._input(storage, offset)]
        if event == READ:
            return [self._output_again(storage, offset) if output else (mover.begin_read, (storage, offset), {})]
        if event == WRITE:
            return [self._output(storage, offset) if output else (mover.begin_write, (storage, offset), {})]
        if event == ARRIVE and not (fed or output):
            return [(mover.wait, (storage,), {})]
        return [(mover.wait_written, (storage,), {})] if event == LAND and not output else []

    def _run(self) -> None:
        done, before = 0, self._counts()
        try:
            with torch.no_grad():
                for function, args, kwargs in self._instructions:
                    function(*args, **kwargs)
                    done += 1
        except (OpenshelfError, OSError, MemoryError):
            raise
        except Exception as error:
            if done not in self._operators:
                raise
            op = self._program.ops[self._operators[done]]
            raise BadInput(
                f"{op.where}: {op.name} fails: {type(error).__name__}: {error}. Plain PyTorch would fail here, too, "
                "with these inputs: an index may be out of range"
            ) from error
        ran = {count: after - before[count] for count, after in self._counts().items()}
        assert (done, ran) == (len(self._instructions), self._planned), (
            f"planned {len(self._instructions)} instructions and {self._planned}, ran {done} and {ran}"
        )

    def close(self) -> None:
        """Lets go of the arena: instructions hold this, so it would be there until garbage is collected."""
        self._instructions.clear()
        del self._arena, self._mover

    def _counts(self) -> dict[str, int]:
        return {count: getattr(self._mover, count) for count in self._planned}

    def _copied(self, storage: int, offset: int) -> Any:
        """The bytes of a storage, as they are now, in a tensor of its own."""
        return self._bytes(storage, offset).clone()

    def _bytes(self, storage: int, offset: int) -> Any:
        return self._arena[offset : offset + self._program.storages[storage].nbytes]
