"""Capture: a model, or a whole step of training, as a program. Nothing is computed, weights may be on the meta device.

The model's parameters and buffers are replaced by tensors without memory while its code runs once under a Recorder. For
training, backward runs in the recorder too, and a parameter is updated as soon as autograd has all of its gradient, in
the hook that torch has for just that: a gradient lives from its last contribution to its update. Several micro batches
are one program after the other, gradients kept between; clipping needs all gradients before the first update.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from openshelf.errors import BadInput, CaptureFailed, OpenshelfError
from openshelf.offload.capture.arguments import Given, hand_out, take_in
from openshelf.offload.capture.buffers import computed_buffers
from openshelf.offload.capture.captured import Captured, Notes, finish, modules_of, trained_of
from openshelf.offload.capture.decompositions import decomposed_as_when_run
from openshelf.offload.capture.fake_kernels import OF_THIS_PROCESS, KernelStrides
from openshelf.offload.capture.hooks import need_no_hooks
from openshelf.offload.capture.known_values import not_traced, unrecorded
from openshelf.offload.capture.optimizer import Updates
from openshelf.offload.capture.plain_weights import need_plain_weights
from openshelf.offload.capture.published import published_of
from openshelf.offload.capture.reachable import restorer, tensors_in
from openshelf.offload.capture.recorder import NOT_THE_MODELS, Recorder, watch_modules
from openshelf.offload.program.progress import shown
from openshelf.offload.program.torch import torch

fake_errors: Any = torch._subclasses.fake_tensor


@shown("capturing the model")
def capture(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    give_back: bool = True,
    strides: KernelStrides = OF_THIS_PROCESS,
) -> Captured:
    """The program of `model(*args, **kwargs)` without gradients.

    `give_back`: what the model changes in its arguments is changed in those of the caller when the program has run. If
    not, a buffer that the model replaces without looking at it is not written either: the next call replaces it, too.
    """
    with _plain_mode(), _recording(model, strides, training=False) as (recorder, notes, fakes), recorder:
        given = take_in(recorder, notes, args, kwargs or {})
        result = model(*given.args, **given.kwargs)
        hand_out(recorder, notes, result, given if give_back else Given.nothing())
        _keep_state(recorder, fakes, leave_unread=not give_back)
    return finish(recorder, notes)


@shown("capturing a step of training")
def capture_training(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    optimizer: Any = None,
    micro: int = 1,
    clip: float | None = None,
    strides: KernelStrides = OF_THIS_PROCESS,
) -> Captured:
    """The program of one step of training: forward, backward, and the update of each parameter.

    `loss` makes the loss from the model's result (`result.loss` if not given), its part of 1/micro included.
    `optimizer` is a torch.optim SGD, Adam, AdamW, Adafactor or Muon of the model's parameters; it is read, never
    stepped. Without one, gradients are what the program keeps. `micro` batches are accumulated, `clip` is the
    `max_norm` of torch's `clip_grad_norm_`.
    """
    if micro < 1:
        raise BadInput(f"a step has 1 or more micro batches, got micro={micro}")
    with _plain_mode(True), _recording(model, strides, training=True) as (recorder, notes, fakes), recorder:
        recorder.training, notes.trained = True, trained_of(model)
        sink = _Sink(recorder, notes, fakes, optimizer, clip)
        losses = []
        for number in range(micro):
            prefix = f"{number}." if micro > 1 else ""
            recorder.phase = "forward"
            given = take_in(recorder, notes, args, kwargs or {}, prefix)
            result = model(*given.args, **given.kwargs)
            given.need_same()
            value = loss(result) if loss else getattr(result, "loss", None)
            if value is None:
                raise CaptureFailed(
                    f"the model's result, a {'Tensor' if isinstance(result, torch.Tensor) else type(result).__name__}, "
                    "has no loss: give the model labels, or give loss=, a function that makes the loss of the result"
                )
            recorder.phase = "backward"
            sink.last = number == micro - 1
            value.backward()
            losses.append(value.detach())
            del result, value
        with torch.no_grad():
            norm = sink.end()
        hand_out(recorder, notes, (*losses, norm) if clip is not None else tuple(losses), Given.nothing())
        _keep_state(recorder, fakes)
    return finish(recorder, notes)


@contextlib.contextmanager
def _plain_mode(gradients: bool = False) -> Iterator[None]:
    """Also for callers in inference_mode, where tensors are others; and without what torch logs of errors, which are
    raised: those of shapes would be said twice."""
    log = logging.getLogger(fake_errors.__name__)
    before, log.disabled = log.disabled, True
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            yield
    finally:
        log.disabled = before


class _Sink:
    """Where gradients go once they are complete."""

    def __init__(self, recorder: Recorder, notes: Notes, fakes: _Fakes, optimizer: Any, clip: float | None) -> None:
        self.recorder, self.notes, self.clip, self.last = recorder, notes, clip, False
        self.updates = notes.updates = Updates(optimizer) if optimizer is not None else None
        if self.updates is not None:
            self.updates.need_parameters_of(real for real, _ in fakes.parameters.values())
        self.norms: dict[str, Any] = {}
        self.params = {name: (real, fake) for name, (real, fake) in fakes.parameters.items() if fake.requires_grad}
        self._hooks = [
            fake.register_post_accumulate_grad_hook(
                lambda _, name=name, real=real, fake=fake: self._complete(name, real, fake)
            )
            for name, (real, fake) in self.params.items()
        ]

    def _complete(self, name: str, real: Any, fake: Any) -> None:
        stored = self.recorder.stored[self.recorder.view(fake.grad).storage]
        if stored.kind == "activation":
            stored.kind, stored.name = "gradient", f"{name}.grad"
        if not self.last:
            return
        self.recorder.phase = "update"
        if self.clip is not None:
            self.norms[name] = torch.linalg.vector_norm(fake.grad, 2.0)
        else:
            self._sink(name, real, fake)
        self.recorder.phase = "backward"

    def _sink(self, name: str, real: Any, fake: Any) -> None:
        recorder, gradient = self.recorder, self.recorder.view(fake.grad)
        rule = self.updates.rule(real) if self.updates is not None else None
        if self.updates is None:
            recorder.stored[gradient.storage].kept = True
            self.notes.gradients[name] = gradient
        elif rule is not None:
            views = [recorder.view(fake), gradient]
            shapes = rule.states_of(tuple(real.shape))
            for state, value in self.updates.states(real).items():
                like = fake if shapes[state] == tuple(real.shape) else fake.new_empty(shapes[state])
                one = recorder.new(like, f"{name}.{state}", "state")
                views.append(recorder.view(one))
                stored = recorder.stored[views[-1].storage]
                stored.kept, stored.value = True, None if value is None else _laid_out(value, one)
                self.notes.states[views[-1].storage] = (name, state)
            recorder.add(self.updates.call(rule, views, name))
            recorder.stored[views[0].storage].kept = True
        fake.grad = None

    def end(self) -> Any:
        """After the last backward: with clipping, what torch's clip_grad_norm_ does, then the updates."""
        for hook in self._hooks:
            hook.remove()  # they hold the real parameters
        if self.clip is None:
            return None
        self.recorder.phase = "update"
        graded = {name: one for name, one in self.params.items() if one[1].grad is not None}
        total = torch.linalg.vector_norm(torch.stack([self.norms[name] for name in _by_dtype(graded)]), 2.0)
        factor = torch.clamp(float(self.clip) / (total + 1e-6), max=1.0)
        for name, (real, fake) in graded.items():
            fake.grad.mul_(factor)
            self._sink(name, real, fake)
        return total


def _by_dtype(graded: dict[str, tuple[Any, Any]]) -> list[str]:
    """Names in the order in which clip_grad_norm_ adds up the norms: in groups of one dtype."""
    names = list(graded)
    with unrecorded():
        reals = [[real.detach() for real, _ in graded.values()]]
        groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype(reals, with_indices=True)
    return [names[at] for _, indices in groups.values() for at in indices]


def _laid_out(value: Any, fake: Any) -> Any:
    """A state's value in a storage of its own, laid out as the parameter is."""
    with unrecorded():
        real = torch.zeros(fake.untyped_storage().nbytes() // fake.dtype.itemsize, dtype=fake.dtype)
        real.as_strided(fake.shape, fake.stride()).copy_(value)
        return real


@dataclasses.dataclass
class _Fakes:
    """Tensors without memory in the place of a model's."""

    parameters: dict[str, tuple[Any, Any]]  # name -> real, fake; one name for each parameter
    registered: list[tuple[dict[str, Any], str, Any, Any]]  # a module's table, name in it, real, fake
    attributes: list[_Attributes]
    tables: list[tuple[str, Any, Any]]  # a module's path, what is registered there, a copy from before


@dataclasses.dataclass
class _Attributes:
    """What a module has beside what is registered, and what it held before."""

    path: str
    table: dict[str, Any]
    before: dict[str, Any]
    tensors: dict[str, list[Any]]
    restore: dict[str, Callable[[], None]]  # lists, dicts and objects that a model may change in place

    @classmethod
    def of(cls, path: str, module: Any) -> _Attributes:
        table = vars(module)
        before = {name: value for name, value in table.items() if name not in _MODULES_OWN}
        tensors = {name: tensors_in(value) for name, value in before.items()}
        return cls(path, table, before, tensors, {name: restorer(value) for name, value in before.items()})

    def with_fakes(self) -> list[str]:
        return [
            name
            for name, value in self.table.items()
            if name not in _MODULES_OWN
            and any(isinstance(one, fake_errors.FakeTensor) for one in tensors_in((value, self.before.get(name))))
        ]

    def put_back(self, name: str) -> None:
        if name not in self.before:
            del self.table[name]
        else:
            self.table[name] = self.before[name]
            self.restore[name]()


_MODULES_OWN = frozenset(vars(torch.nn.Module()))


@contextlib.contextmanager
def _recording(model: Any, strides: KernelStrides, *, training: bool) -> Iterator[tuple[Recorder, Notes, _Fakes]]:
    if not hasattr(model, "named_parameters"):
        raise BadInput(
            f"a model is a torch.nn.Module, got {type(model).__name__}: put what it does in a module's forward"
        )
    need_plain_weights(model)
    need_no_hooks(model, training=training)
    recorder = Recorder(strides)
    names: dict[int, tuple[str, ...]] = {}
    notes = Notes(names, {}, [], [], None, modules_of(model), published_of(model))
    fakes, by_id = _Fakes({}, [], [], []), {}
    values = computed_buffers(model)
    tensors = [(name, one, "weight") for name, one in model.named_parameters(remove_duplicate=False)]
    tensors += [(name, one, "buffer") for name, one in model.named_buffers(remove_duplicate=False)]
    with recorder.fakes:
        for name, tensor, kind in tensors:
            if isinstance(tensor, fake_errors.FakeTensor):
                raise BadInput(f"{name!r} is a fake tensor, which has no values: put it on the meta device, or the CPU")
            if torch.nn.parameter.is_lazy(tensor):
                raise BadInput(f"{name!r} has no shape yet: call the model once before it is planned")
            if id(tensor) not in by_id:
                fake = by_id[id(tensor)] = _stand_in(recorder, recorder.bases, name, tensor, kind, values.get(name))
                if kind == "weight":
                    fakes.parameters[name] = (tensor, fake)
            view = notes.views[name] = recorder.view(by_id[id(tensor)])
            names[view.storage] = (*names.get(view.storage, ()), name)
    for path, module in model.named_modules():
        tables = module._parameters, module._buffers, module._modules, module._non_persistent_buffers_set
        fakes.tables += [(path, table, table.copy()) for table in tables]
        fakes.attributes.append(_Attributes.of(path, module))
    fakes.registered += [
        (table, name, tensor, by_id[id(tensor)])
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None
    ]
    unwatch = watch_modules(model, recorder)
    try:
        for table, name, _, fake in fakes.registered:
            table[name] = fake
        with recorder.fakes, not_traced(), recorder.draws.watched(), decomposed_as_when_run():
            yield recorder, notes, fakes
    except OpenshelfError:
        raise
    except Exception as error:
        raise CaptureFailed(_why(recorder, error)) from error
    finally:
        for _, table, before in fakes.tables:
            table.clear()
            table.update(before)
        for one in fakes.attributes:
            for name in one.with_fakes():
                one.put_back(name)
        unwatch()


def _keep_state(recorder: Recorder, fakes: _Fakes, *, leave_unread: bool = False) -> None:
    """A buffer that was given another tensor: the program changes it in place. Other state of a model is refused.

    `leave_unread`: the program does without, if it does not read that buffer.
    """
    for path, table, before in fakes.tables:
        names = [name for name in table if isinstance(table, dict) and table[name] is not None]
        if added := [name for name in names if before.get(name) is None]:
            raise CaptureFailed(
                f"{path or 'the model'} registers {', '.join(map(repr, added))} when it is called, so that it may do "
                "something else the next time: call it once before it is planned, or register it when it is made"
            )
    given: list[tuple[str, Any, Any]] = [
        (name, fake, table.get(name)) for table, name, _, fake in fakes.registered if table.get(name) is not fake
    ]
    if leave_unread:
        used = {storage for call in recorder.calls for storage in (*call.reads, *call.changes)}
        given = [one for one in given if recorder.number(one[1]) in used]
    for name, fake, new in given:
        alike = isinstance(new, torch.Tensor) and (new.shape, new.dtype) == (fake.shape, fake.dtype)
        if not alike or isinstance(fake, torch.nn.Parameter):
            raise CaptureFailed(
                f"the model puts another tensor, or one of another shape, in the place of {name!r}: only a buffer can "
                "be given another value, and only one of the same shape and dtype"
            )
    with torch.no_grad():
        values = [new.detach().clone() for _, _, new in given]
        for (_, fake, _), value in zip(given, values, strict=True):
            fake.copy_(value)
    read = set(map(id, recorder.constants.values()))
    for module in fakes.attributes:
        for name in module.with_fakes():
            if any(id(one) in read for one in module.tensors.get(name, ())):
                raise CaptureFailed(
                    f"{module.path or 'the model'} reads the tensor in its attribute {name!r} and then puts another "
                    "one there, for the next call: make it a buffer (register_buffer)"
                )


def _stand_in(recorder: Recorder, bases: dict[int, Any], name: str, tensor: Any, kind: Any, value: Any) -> Any:
    """A fake of `tensor`, in the fake storage that all tensors of its storage share."""
    storage = tensor.untyped_storage()
    base = bases.get(storage._cdata)
    if base is None:
        base = bases[storage._cdata] = torch.empty(
            storage.nbytes() // tensor.dtype.itemsize, dtype=tensor.dtype, device="cpu"
        )
        recorder.store(base, name, kind, True, value)
    fake = base.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return torch.nn.Parameter(fake, tensor.requires_grad) if kind == "weight" else fake


_OF_MODULES = f"{os.sep}torch{os.sep}nn{os.sep}modules{os.sep}"


def _why(recorder: Recorder, error: Exception) -> str:
    """What happened, in which module, at which line of whose code."""
    frames = list(traceback.extract_tb(error.__traceback__))
    lines = [one for one in frames if not one.filename.startswith(NOT_THE_MODELS)]
    lines = lines or [one for one in frames if _OF_MODULES in one.filename] or frames  # torch's own modules
    line = f"{lines[-1].filename}:{lines[-1].lineno} ({lines[-1].line})" if lines else "an unknown line"
    by_value = isinstance(error, (fake_errors.DataDependentOutputException, fake_errors.DynamicOutputShapeException))
    advice = ". What the code does has to follow from shapes, not from the values of tensors" if by_value else ""
    module = recorder.failed_in or "the model"
    module = f"module {module!r}" if module[0].isdigit() else module  # of a Sequential
    return f"{module} cannot be captured, at {line}: {type(error).__name__}: {error}{advice}"
