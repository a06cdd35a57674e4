"""What runs a plan for a context that grows: an executor whose states have rows as long as the bucket's."""

from __future__ import annotations

import dataclasses
from typing import Any

from openshelf.offload.decoder.memory import DecoderMemory
from openshelf.offload.decoder.plan import BucketPlan
from openshelf.offload.program.call import View
from openshelf.offload.run.executor import Executor


def executor_of(bucket: BucketPlan, longest: int, arena: Any, memory: DecoderMemory) -> Executor:
    """Runs a plan at any length of its bucket. `longest`: the tokens for which buffers were captured."""
    growth = bucket.growth
    storages = growth.program(bucket.room).storages  # with the sizes of those that stay, which plans do not know
    captured = growth.lengths.growing(dataclasses.replace(bucket.plan.program, storages=storages))

    rooms = growth.rooms(bucket.room)

    def in_this_room(view: View) -> View:
        """Rows of what grows are as long as they are in this arena, and begin with the first token that is there."""
        state = growth.states[growth.kv[view.storage]] if view.storage in growth.kv else None
        if state is None or not state.grows:
            return view
        width, room = state.width, rooms[growth.kv[view.storage]]

        def moved(distance: int) -> int:
            rows, rest = divmod(distance, longest * width)
            return rows * room * width + rest

        begin = moved(view.offset) - memory.first(view.storage) * width
        return View(view.storage, view.dtype, view.shape, tuple(map(moved, view.strides)), begin)

    appended = [storage for storage in growth.kv if storage in bucket.stays or growth.written_through(storage)]
    return Executor(
        captured, bucket.plan.steps, arena, memory, bucket.stays, grows=True, laid_out=in_this_room, appended=appended
    )
