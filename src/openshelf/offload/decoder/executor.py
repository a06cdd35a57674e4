"""What runs a plan for a context that grows: an executor whose keys and values have rows as long as the bucket's."""

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

    def in_this_room(view: View) -> View:
        """Rows of keys and values are as long as they are in this arena, not as they were captured."""
        if view.storage not in growth.kv:
            return view
        width = growth.shapes[growth.kv[view.storage]].width

        def moved(distance: int) -> int:
            rows, rest = divmod(distance, longest * width)
            return rows * bucket.room * width + rest

        return View(view.storage, view.dtype, view.shape, tuple(map(moved, view.strides)), moved(view.offset))

    appended = [storage for storage in growth.kv if growth.writes_through or storage in bucket.stays]
    return Executor(
        captured, bucket.plan.steps, arena, memory, bucket.stays, grows=True, laid_out=in_this_room, appended=appended
    )
