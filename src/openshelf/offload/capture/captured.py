"""What capture hands on: the program for planners, the calls behind its operators, and what the storages are of."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from openshelf.errors import BadInput, CaptureFailed
from openshelf.offload.capture.expected import Expected
from openshelf.offload.capture.known_values import Question
from openshelf.offload.capture.optimizer import Update, Updates
from openshelf.offload.capture.published import Published
from openshelf.offload.capture.recorder import Recorder
from openshelf.offload.capture.rng import draws_numbers
from openshelf.offload.capture.tree import Builder, Flat, Tree, contents, fill, flatten, key_of
from openshelf.offload.program.call import Call, OwnKernel, View, map_views
from openshelf.offload.program.out_forms import workspace_of
from openshelf.offload.program.program import Op, Program, Storage
from openshelf.offload.program.torch import torch

_PLAN_ANOTHER = "make a plan for these, too, or use offload.wrap(), which makes one for each form of arguments"
Modules = dict[str, tuple[str, bool, tuple[str, ...]]]  # path -> class, whether it trains, names of its own tensors


def trained_of(model: Any) -> frozenset[str]:
    return frozenset(name for name, one in model.named_parameters(remove_duplicate=False) if one.requires_grad)


def modules_of(model: Any) -> Modules:
    """What a model is made of, as far as what it does may depend on it."""
    return {
        path: (
            f"{type(module).__module__}.{type(module).__qualname__}",
            module.training,
            tuple(name for table in (module._parameters, module._buffers) for name in table),
        )
        for path, module in model.named_modules(remove_duplicate=False)
    }


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Arguments of one call of the model: their tree, its leaves, Views where these are tensors.

    `names` are those of keyword arguments. `asked` is what the model asked of the values of tensors, each with the
    positions, among the leaves, of the input storages that the answer follows from.
    """

    tree: Tree
    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    asked: tuple[tuple[Question, dict[int, int]], ...] = ()

    def in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments in the order of the capture."""
        if kwargs.keys() != set(self.names):
            raise BadInput(
                f"this was captured for the keyword arguments {', '.join(self.names) or '(none)'}, got "
                f"{', '.join(kwargs) or '(none)'}: {_PLAN_ANOTHER}"
            )
        return {name: kwargs[name] for name in self.names}

    def taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Flat, dict[int, Any]]:
        """The arguments taken apart, and the tensor for each input storage.

        BadInput unless these arguments are like those captured.
        """
        flat = flatten((args, self.in_order(kwargs)))
        if flat.tree != self.tree:
            raise BadInput(f"this was captured for arguments of the form {self.tree}, got {flat.tree}: {_PLAN_ANOTHER}")
        found = {}
        for position, (leaf, expected) in enumerate(zip(flat.leaves, self.leaves, strict=True)):
            if isinstance(expected, View) and isinstance(leaf, torch.Tensor):
                if (tuple(leaf.shape), leaf.dtype) != (expected.shape, expected.dtype):
                    raise BadInput(
                        f"this was captured for a tensor of {expected.dtype} {expected.shape}, got one of "
                        f"{leaf.dtype} {tuple(leaf.shape)}. A plan is for one shape: "
                        "make another for this one, use offload.buckets() for inputs of any length, or offload.wrap(), "
                        "which makes a plan for each shape"
                    )
                if leaf.is_meta or leaf.layout != torch.strided:
                    raise BadInput(
                        f"a tensor of {leaf.dtype} {tuple(leaf.shape)} has layout {leaf.layout} on {leaf.device}: a "
                        "run needs dense tensors with their values"
                    )
                found[expected.storage] = leaf
            elif key_of(leaf) != key_of(expected):
                raise BadInput(
                    f"this was captured for the argument {flat.paths[position]} = {_brief(expected)}, got "
                    f"{_brief(leaf)}: {_PLAN_ANOTHER}"
                )
        self._need_same_answers(flat)
        return flat, found

    def _need_same_answers(self, flat: Flat) -> None:
        computed: dict[int, Any] = {}
        for question, positions in self.asked:
            given = {storage: flat.leaves[position] for storage, position in positions.items()}
            if not question.same(given, computed):
                paths = ", ".join(f"input{flat.paths[position]}" for position in positions.values())
                raise BadInput(
                    f"{question.where}: what the model does depends on the values of {paths}, and with these it would "
                    "do something else than in the example that was planned: plan with an example like these, or use "
                    "wrap(..., fallback='modules')"
                )


def _brief(value: Any) -> str:
    """Of a tensor, what it is, not what is in it."""
    tensor = isinstance(value, (View, torch.Tensor))
    return f"a tensor of {value.dtype} {tuple(value.shape)}" if tensor else repr(value)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call's outputs are put together: its result, then what it did to the containers that it was given.

    `effects`: the number of a container, its keys and what its class needs, the forms of what is new there (None: as
    it was). `written`: positions of the arguments' tensors that were changed in place.
    """

    result: Tree
    effects: tuple[tuple[int, tuple[Any, ...], Any, tuple[Tree | None, ...]], ...] = ()
    written: tuple[int, ...] = ()

    def put_together(self, leaves: list[Any], given: Flat) -> Any:
        """The result; the caller's arguments, `given`, are changed as the model's were."""
        made = Builder(leaves, given.objects)
        result = made.build(self.result)
        changed = []
        for number, keys, more, parts in self.effects:
            before = dict(zip(*contents(given.objects[number])[:2], strict=True))
            values = [before[key] if one is None else made.build(one) for key, one in zip(keys, parts, strict=True)]
            changed.append((given.objects[number], (keys, tuple(values), more)))
        for container, now in changed:
            fill(container, now)
        with torch.no_grad():
            for position, value in zip(self.written, made.rest(), strict=True):
                given.leaves[position].copy_(value)
        return result


@dataclasses.dataclass(frozen=True)
class Captured:
    """A model as a program. `calls[i]` is what `program.ops[i]` does; their Views name `program.storages`.

    `names` are the parameters and buffers that are in a storage, more than one where weights are tied. `values` are the
    tensors of given storages that no checkpoint has: constants, buffers that are not saved, and states that the
    optimizer has already; other states begin as zeros.
    `gradients` is filled where no optimizer was given: views of storages that are kept. `outside` are the bytes that
    torch takes outside the arena while each operator runs: `measured` finds them, before that they are an estimate.
    `modules` is what the model was made of, `trained` are the parameters that gradients were wanted for; None if it did
    not train. `published` is how checkpoints have the model's tensors, if not by their names. `hurried` are operators
    that `measured` had no time to time well.
    """

    program: Program
    calls: tuple[Call, ...]
    names: dict[int, tuple[str, ...]]
    views: dict[str, View]  # of parameters and buffers
    states: dict[int, tuple[str, str]]  # storage -> parameter, name of the state
    values: dict[int, Any]
    inputs: tuple[Inputs, ...]
    outputs: tuple[Any, ...]  # leaves, Views where these are tensors
    outcome: Outcome | None  # how the outputs are put together
    gradients: dict[str, View]
    updates: Updates | None
    outside: tuple[int, ...]
    modules: Modules
    trained: frozenset[str] | None
    published: Published | None
    hurried: tuple[str, ...] = ()


@dataclasses.dataclass
class Notes:
    """What a recording has found out beside the calls."""

    names: dict[int, tuple[str, ...]]
    views: dict[str, View]
    inputs: list[Inputs]
    outputs: list[Any]
    outcome: Outcome | None
    modules: Modules
    published: Published | None = None
    trained: frozenset[str] | None = None
    states: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    gradients: dict[str, View] = dataclasses.field(default_factory=dict)
    updates: Updates | None = None


def finish(recorder: Recorder, notes: Notes) -> Captured:
    """The recording as a program: without what nobody reads, storages numbered by first use."""
    stored, questions = recorder.stored, recorder.known.done()
    calls = _needed(_updates_after_reads(recorder.calls), {n for n, one in enumerate(stored) if one.kept})
    numbers: dict[int, int] = {}
    for call in calls:
        for number in (*call.reads, *call.changes, *(view.storage for view in call.makes if view is not None)):
            numbers.setdefault(number, len(numbers))
    for number, one in enumerate(stored):
        if one.kept:
            numbers.setdefault(number, len(numbers))
    changed = {number for call in calls for number in call.changes}
    read = {number for call in calls for number in (*call.reads, *call.changes)}
    read |= {number for number, one in enumerate(stored) if one.kept}
    for number in changed:
        if number in notes.names:
            stored[number].kept = True

    def renumbered(value: Any) -> Any:
        return map_views(value, lambda view: dataclasses.replace(view, storage=numbers.get(view.storage, -1)))

    storages = tuple(
        Storage(index, stored[old].name, stored[old].nbytes, stored[old].kind, stored[old].given, stored[old].kept)
        for old, index in numbers.items()
    )
    ops = tuple(_op(index, call, changed, numbers) for index, call in enumerate(calls))
    calls = [
        dataclasses.replace(
            call,
            args=renumbered(call.args),
            kwargs=renumbered(call.kwargs),
            makes=renumbered(call.makes),
            reads=op.reads,
            changes=op.changes,
            unread=tuple(at for at, view in enumerate(call.makes) if view is not None and view.storage not in read),
        )
        for call, op in zip(calls, ops, strict=True)
    ]
    return Captured(
        program=Program(ops, storages, _key(calls, storages)),
        calls=tuple(calls),
        names={numbers[old]: names for old, names in notes.names.items() if old in numbers},
        views={name: renumbered(view) for name, view in notes.views.items() if view.storage in numbers},
        states={numbers[old]: whose for old, whose in notes.states.items()},
        values={index: stored[old].value for old, index in numbers.items() if stored[old].value is not None},
        inputs=tuple(
            dataclasses.replace(one, leaves=renumbered(one.leaves), asked=_asked(questions, one))
            for one in notes.inputs
        ),
        outputs=tuple(renumbered(notes.outputs)),
        outcome=notes.outcome,
        gradients=renumbered(notes.gradients),
        updates=notes.updates,
        outside=tuple(workspace_of(call)[1] for call in calls),
        modules=notes.modules,
        trained=notes.trained,
        published=notes.published,
    )


def _asked(questions: tuple[Question, ...], inputs: Inputs) -> tuple[tuple[Question, dict[int, int]], ...]:
    """Those that follow from this call's inputs; one call's do not follow from another's."""
    places = {view.storage: position for position, view in enumerate(inputs.leaves) if isinstance(view, View)}
    found = []
    for question in questions:
        sources = question.sources
        if places.keys() >= sources.keys():
            found.append((question, {storage: places[storage] for storage in sources}))
        elif not places.keys().isdisjoint(sources):
            raise CaptureFailed(f"{question.where}: depends on the values of several micro batches at once")
    return tuple(found)


def _op(index: int, call: Call, changed: set[int], numbers: dict[int, int]) -> Op:
    makes = tuple(dict.fromkeys(view.storage for view in call.makes if view is not None))
    again = not call.changes and not random(call) and changed.isdisjoint(makes)
    return Op(
        index=index,
        name=call.name,
        reads=tuple(numbers[one] for one in call.reads),
        changes=tuple(numbers[one] for one in call.changes),
        makes=tuple(numbers[one] for one in makes),
        workspace=workspace_of(call)[0],
        again=again,
        phase=call.phase,
        where=call.where,
    )


def random(call: Call) -> bool:
    return not isinstance(call.kernel, OwnKernel) and draws_numbers(call.kernel, call.args, call.kwargs)


def _needed(calls: list[Call], wanted: set[int]) -> list[Call]:
    """Without calls whose results nobody reads. Random ones stay: the numbers after them depend on them."""
    wanted, needed = set(wanted), []
    for call in reversed(calls):
        looks = isinstance(call.kernel, Expected)
        if (
            call.changes
            or looks
            or random(call)
            or any(view is not None and view.storage in wanted for view in call.makes)
        ):
            wanted.update(call.reads, call.changes)
            needed.append(call)
    return needed[::-1]


def _updates_after_reads(calls: list[Call]) -> list[Call]:
    """Updates whose parameter is read after them (by something that has no part in its gradient) go to the end."""
    read_last: dict[int, int] = {}
    for at, call in enumerate(calls):
        if not isinstance(call.kernel, Update):
            read_last.update((number, at) for number in (*call.reads, *call.changes))
    late = [
        call
        for at, call in enumerate(calls)
        if isinstance(call.kernel, Update) and read_last.get(call.changes[0], -1) > at
    ]
    moved = set(map(id, late))
    return [call for call in calls if id(call) not in moved] + late


def _key(calls: list[Call], storages: tuple[Storage, ...]) -> str:
    digest = hashlib.sha256(repr(storages).encode())
    for call in calls:
        digest.update(repr((call.name, call.args, call.kwargs, call.makes, call.phase)).encode())
    return digest.hexdigest()
