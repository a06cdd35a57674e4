"""What moves between the arena and the tiers below it while a context grows: weights, and keys and values.

Several programs share one arena and the same weights; each has its own numbers for them. So they are known by name
here, and the program that is about to run says so before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openshelf._core import DeviceArena
from openshelf.offload.capture.captured import Captured
from openshelf.offload.decoder.kv_tier import KVTier
from openshelf.offload.decoder.plan import BucketPlan, Growth
from openshelf.offload.move.homes import Homes
from openshelf.offload.move.mover import Mover, Traffic
from openshelf.offload.program.steps import Store
from openshelf.offload.program.torch import arena_bytes, bytes_of
from openshelf.offload.weights.packed import Packed


class DecoderMemory:
    """Moves storages of the program that was begun. Counts what it does, for the run to compare with its plan."""

    def __init__(self, packed: Packed, arena: DeviceArena, kv: KVTier, folder: Path | str | None) -> None:
        self.reads = self.writes = self.appends = 0
        self.settled = 0  # bytes that were brought to where they stay
        self._kv_tier, self._arena = kv, arena_bytes(arena)
        self._homes, self._packed, self._numbers = Homes(folder), packed, dict[str, int]()
        self._weights: dict[Growth, dict[int, int]] = {}  # program -> storage -> number
        self._others: dict[tuple[Growth, int], dict[int, int]] = {}  # what a plan stores besides, by program and room
        self._count = 0
        self._mover = Mover(self._homes, arena)
        self._program: Growth | None = None
        self._tokens = 0
        self._now: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {})  # storages -> numbers of weights, and of kv
        self._there: set[tuple[Any, int]] = set()

    def begin(self, bucket: BucketPlan, past: int, tokens: int) -> None:
        """This program runs next, and appends tokens to those that are there: what stays in the arena is brought in."""
        program = bucket.growth
        self._kv_tier.begin(past, program.firsts(past), program.rooms(bucket.room))
        self._tokens = tokens
        if program not in self._weights:
            self._weights[program] = {storage: self._number(name) for storage, name in weights_of(program).items()}
        if (program, bucket.room) not in self._others:
            self._others[program, bucket.room] = self._rooms(bucket)
        moved = self._weights[program] | self._others[program, bucket.room]
        self._program, self._now = program, (moved, bucket.growth.kv)
        stays = {(self._what(bucket, storage), offset): storage for storage, offset in bucket.stays.items()}
        new = [(storage, offset) for (what, offset), storage in stays.items() if (what, offset) not in self._there]
        values = bucket.growth.lengths.captured.values
        for storage, offset in new:
            if storage in values:
                value = bytes_of(values[storage])
                self._arena[offset : offset + value.numel()].copy_(value)
            else:
                self._begin_read(storage, offset)
        for storage, _ in new:
            if storage not in values:
                self.wait(storage)
            self.settled += bucket.growth.program_bytes(storage, bucket.room)
        self._there = set(stays)

    def commit(self) -> None:
        """The program has come to its end."""
        self._kv_tier.commit()

    def first(self, storage: int) -> int:
        """The first token that is in the arena, of a state that grows."""
        return self._kv_tier.firsts[self._now[1][storage]]

    def begin_read(self, storage: int, offset: int) -> None:
        self._begin_read(storage, offset)
        self.reads += 1

    def wait(self, storage: int) -> None:
        weights, kv = self._now
        if storage in kv:
            self._kv_tier.wait(kv[storage])
        else:
            self._mover.wait(weights[storage])

    def begin_write(self, storage: int, offset: int) -> None:
        others, kv = self._now
        if storage in kv:
            self._kv_tier.begin_write(kv[storage], offset, self._tokens)
        else:
            self._mover.begin_write(others[storage], offset)
        self.writes += 1

    def wait_written(self, storage: int) -> None:
        others, kv = self._now
        if storage in kv:
            self._kv_tier.wait_written(kv[storage])
        else:
            self._mover.wait_written(others[storage])

    def append(self, storage: int, offset: int) -> None:
        self._kv_tier.append(self._now[1][storage], offset, self._tokens)
        self.appends += 1

    def lanes(self) -> dict[str, Traffic]:
        """What each lane has moved; where weights and KV share one, its busy time is the sum of both."""
        kv = self._kv_tier.lanes()
        return {
            name: Traffic(
                one.requests + kv[name].requests, one.nbytes + kv[name].nbytes, one.busy_s + kv[name].busy_s,
                max(one.most, kv[name].most),
            )
            for name, one in self._mover.lanes().items()
        }  # fmt: skip

    def abandon(self) -> bool:
        """After a run that ended half-way: whether the context is as it was before it."""
        self._there.clear()  # is read anew
        self._mover.abandon()
        return self._kv_tier.abandon()

    def close(self) -> None:
        self._mover.close()
        self._kv_tier.close()

    def _begin_read(self, storage: int, offset: int) -> None:
        weights, kv = self._now
        if storage in kv:
            self._kv_tier.begin_read(kv[storage], offset)
        else:
            self._mover.begin_read(weights[storage], offset)

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = self._count
            self._homes.packed(self._count, self._packed, name)
            self._count += 1
        return self._numbers[name]

    def _rooms(self, bucket: BucketPlan) -> dict[int, int]:
        """Scratch for what operators make and the plan stores: numbers by storage."""
        found: dict[int, int] = {}
        for step in bucket.plan.steps:
            storage = bucket.plan.program.storages[step.storage] if isinstance(step, Store) else None
            if storage is not None and storage.kind not in ("kv", "output") and storage.index not in found:
                found[storage.index] = self._count
                self._homes.room(self._count, storage.name, storage.nbytes)
                self._count += 1
        return found

    def _what(self, bucket: BucketPlan, storage: int) -> Any:
        """Equal for equal bytes in the arena, whatever program's."""
        weights, kv = self._now
        if storage in kv:
            number = kv[storage]
            return "kv", number, self._kv_tier.rooms[number], self._kv_tier.firsts[number]
        return ("weight", weights[storage]) if storage in weights else ("value", self._program, storage)


def weights_of(growth: Growth) -> dict[int, str]:
    """The storages that a checkpoint has, with the names they have there."""
    captured = growth.lengths.captured
    return {
        one.index: captured.names[one.index][0]
        for one in captured.program.storages
        if one.given and one.index in captured.names and one.index not in captured.values
    }


def all_weights(growths: Sequence[Growth]) -> Captured:
    """The first program, as one that has the weights of all: they are packed for it."""
    first = growths[0].lengths.captured
    storages, names, views = list(first.program.storages), dict(first.names), dict(first.views)
    known = {name for several in names.values() for name in several}
    for growth in growths[1:]:
        captured = growth.lengths.captured
        for storage, name in weights_of(growth).items():
            if name in known:
                continue
            number = len(storages)
            storages.append(dataclasses.replace(captured.program.storages[storage], index=number))
            names[number] = captured.names[storage]
            for one in names[number]:
                views[one] = dataclasses.replace(captured.views[one], storage=number)
            known.update(names[number])
    program = dataclasses.replace(first.program, storages=tuple(storages))
    return dataclasses.replace(first, program=program, names=names, views=views)
