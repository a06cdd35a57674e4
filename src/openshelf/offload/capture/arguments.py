"""What goes into a captured call and what comes out: arguments become fakes, results and changed arguments outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from openshelf.errors import BadInput, CaptureFailed
from openshelf.offload.capture.captured import Inputs, Notes, Outcome
from openshelf.offload.capture.recorder import Recorder
from openshelf.offload.capture.tree import (
    Contents,
    Flattener,
    Tree,
    contents,
    flatten,
    is_constant,
    key_of,
    name_of,
    unflatten,
)
from openshelf.offload.program.torch import torch


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What plan() calls inputs as arguments of a call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple) and [type(one) for one in inputs] == [tuple, dict]:
        return inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


@dataclasses.dataclass
class Given:
    """The fake arguments of a call, and what their containers held before it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    objects: list[Any]
    before: list[Contents]

    @classmethod
    def nothing(cls) -> Given:
        """Nothing that was given is to be given back."""
        return cls((), {}, [], [], [])

    def changed(self) -> list[int]:
        """Numbers of the containers that do not hold what they did."""
        return [
            number
            for number, (one, before) in enumerate(zip(self.objects, self.before, strict=True))
            if not _same(contents(one), before)
        ]

    def need_same(self) -> None:
        for number in self.changed():
            raise CaptureFailed(
                f"the model changes a {name_of(type(self.objects[number]))} that it is given, and a step of training "
                "hands back losses only: give it what it does not change (use_cache=False)"
            )


def _same(now: Contents, before: Contents) -> bool:
    return now[0] == before[0] and now[2] == before[2] and all(map(_is, now[1], before[1]))


def _is(one: Any, other: Any) -> bool:
    return one is other or (is_constant(one) and is_constant(other) and key_of(one) == key_of(other))


def take_in(recorder: Recorder, notes: Notes, args: tuple[Any, ...], kwargs: dict[str, Any], prefix: str = "") -> Given:
    """Fakes in the place of all tensors among the arguments."""
    flat = flatten((args, kwargs))
    leaves: list[Any] = []
    views: list[Any] = []
    for path, leaf in zip(flat.paths, flat.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout != torch.strided:
                raise BadInput(f"the input{path} has layout {leaf.layout}: only dense tensors can be planned")
            leaves.append(recorder.new(leaf, f"{prefix}input{path}", "input"))
            views.append(recorder.view(leaves[-1]))
            if not leaf.is_floating_point():
                recorder.known.tell(views[-1], leaf, is_input=True)
        else:
            leaves.append(leaf)
            views.append(leaf)
    notes.inputs.append(Inputs(flat.tree, tuple(views), tuple(kwargs)))
    args, kwargs = unflatten(flat.tree, leaves)
    objects = flatten((args, kwargs)).objects
    return Given(args, kwargs, leaves, objects, [contents(one) for one in objects])


def hand_out(recorder: Recorder, notes: Notes, result: Any, given: Given) -> None:
    """The result, and what the model changed in what it was given, as outputs of the program."""
    taken = Flattener(given.objects, once=True)
    try:
        tree = taken.apart(result, "the result")
        effects = tuple(_effect(taken, given, number) for number in given.changed())
    except BadInput as error:
        raise CaptureFailed(f"what the model hands out cannot be: {error}") from error
    changed = {storage for call in recorder.calls for storage in call.changes}
    written = [
        position
        for position, leaf in enumerate(given.leaves)
        if isinstance(leaf, torch.Tensor) and recorder.number(leaf) in changed
    ]
    for leaf in (*taken.leaves, *(given.leaves[position] for position in written)):
        if isinstance(leaf, torch.Tensor):
            known = recorder.number(leaf)
            if known is None or recorder.stored[known].given or recorder.stored[known].kind == "gradient":
                leaf = leaf.clone()
            view = recorder.view(leaf)
            stored = recorder.stored[view.storage]
            stored.kind, stored.kept = "output", True
            notes.outputs.append(view)
        else:
            notes.outputs.append(leaf)
    notes.outcome = Outcome(tree, effects, tuple(written))


def _effect(taken: Flattener, given: Given, number: int) -> tuple[int, tuple[Any, ...], Any, tuple[Tree | None, ...]]:
    keys, values, more = contents(given.objects[number])
    before = dict(zip(*given.before[number][:2], strict=True))
    parts = tuple(
        None if key in before and _is(one, before[key]) else taken.apart(one, f"what is changed at {key!r}")
        for key, one in zip(keys, values, strict=True)
    )
    return number, keys, more, parts
