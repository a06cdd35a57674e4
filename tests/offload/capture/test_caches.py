"""Caches and other objects come out of a run, and go in, with all that they hold; what could not is refused."""

from __future__ import annotations

import collections
import copy
import dataclasses
import threading
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed  # noqa: E402
from openshelf.offload.capture.capture import capture  # noqa: E402
from openshelf.offload.capture.tree import flatten, unflatten  # noqa: E402
from openshelf.offload.run.by_module import ByModule  # noqa: E402
from tests.offload.ends import least, stay  # noqa: E402
from tests.offload.models import bits, executor, same  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402
from tests.offload.tiny import made, prompt  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")
OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.1}
SLIDING = (
    "gemma2", "gemma3_text", "mistral", "olmo3", "cohere2", "llama4_text", "exaone4", "qwen2", "modernbert-decoder",
    "gpt_oss",
)  # fmt: skip
HYBRID = ("jamba", "qwen3_next", "falcon_h1", "bamba", "lfm2", "minimax")


def _run(model: Any, ids: Any, cache: Any, planner: Any = least) -> Any:
    """One call by a plan of its own."""
    given = {"past_key_values": cache, "use_cache": True}
    return executor(capture(model, (ids,), given), model, planner)(ids, **given)


def _state(cache: Any) -> Any:
    flat = flatten(cache)
    return flat.tree, [bits(one) if isinstance(one, torch.Tensor) else one for one in flat.leaves]


@pytest.mark.parametrize("kind", SLIDING)
def test_cache_that_a_run_returns_goes_on_as_the_models_own(kind: str) -> None:
    model, ids = made(kind), prompt(20)
    ours = plain = None
    with torch.no_grad():
        for begin, end in ((0, 20), (0, 1), (2, 5)):
            our, their = _run(model, ids[:, begin:end], ours), model(ids[:, begin:end], past_key_values=plain)
            assert same([our.logits], [their.logits]), (begin, end)
            ours, plain = our.past_key_values, their.past_key_values
            assert ours.get_seq_length() == plain.get_seq_length()
            assert _state(ours) == _state(plain)
        assert same([model(ids[:, :1], past_key_values=ours).logits], [model(ids[:, :1], past_key_values=plain).logits])


def test_cache_that_is_given_grows_as_plain_torch_grows_it() -> None:
    model, ids = made("gemma2"), prompt(20)
    with torch.no_grad():
        plain = model(ids).past_key_values
        given = copy.deepcopy(plain)
        assert _run(model, ids[:, :2], given).past_key_values is given  # the caller's own, with two tokens more
        model(ids[:, :2], past_key_values=plain)
    assert _state(given) == _state(plain)
    assert given.get_seq_length() == 22


def test_static_cache_that_is_given_is_written_in_place() -> None:
    model, ids = made("gemma2"), prompt(20)
    plain = transformers.StaticCache(config=model.config, max_cache_len=40)
    with torch.no_grad():
        model(ids, past_key_values=plain)
        given = copy.deepcopy(plain)
        keys = [layer.keys for layer in given.layers]
        for _ in range(2):
            ours = _run(model, ids[:, :1], given, stay)
            assert same([ours.logits], [model(ids[:, :1], past_key_values=plain).logits])
            assert _state(given) == _state(plain)
    assert all(one is layer.keys for one, layer in zip(keys, given.layers, strict=True))


def test_wrapped_model_generates_beyond_its_window() -> None:
    model = made("gemma3_text")
    plain, wrapped = copy.deepcopy(model), offload.wrap(model, "1MiB", **OPTIONS)
    ids, ours, theirs = prompt(20), None, None
    with torch.no_grad():
        for step in (ids, ids[:, :1], ids[:, 1:2]):
            our, their = wrapped(step, past_key_values=ours), plain(step, past_key_values=theirs)
            assert same([our.logits], [their.logits])
            ours, theirs = our.past_key_values, their.past_key_values


@pytest.mark.parametrize("kind", ["gemma2", *HYBRID])
def test_by_modules_a_cache_is_the_models_own_however_often_it_is_called(kind: str) -> None:
    model = made(kind)
    plain = copy.deepcopy(model)
    by_module = ByModule(model, 1 << 20, None)
    ids, ours, theirs = prompt(20), None, None
    with torch.no_grad():
        for step in (ids, ids[:, :1], ids[:, 1:2], ids[:, 2:3]):
            our = by_module(step, past_key_values=ours, use_cache=True)
            their = plain(step, past_key_values=theirs, use_cache=True)
            assert same([our.logits], [their.logits])
            ours, theirs = our.past_key_values, their.past_key_values


def test_nothing_is_registered_for_the_whole_process() -> None:
    _run(made("mistral"), prompt(4), None)
    assert transformers.DynamicCache not in torch.utils._pytree.SUPPORTED_NODES


class Point(NamedTuple):
    x: Any
    y: Any


class Marked(Point):
    """A tuple with names, and attributes beside."""


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    kind: str = "a"


@dataclasses.dataclass
class Slotted:
    __slots__ = ("one", "two")
    one: Any
    two: Any


def test_objects_come_through_with_all_that_they_hold() -> None:
    marked, x = Marked(torch.ones(2), 3), torch.arange(6.0)
    marked.note = "attribute"  # type: ignore[attr-defined]
    shared = [x]
    output = transformers.modeling_outputs.CausalLMOutputWithPast(logits=x)
    output.note = "beside"
    value = {
        "marked": marked, "frozen": Frozen(x), "slotted": Slotted(1, [x]), "output": output, "twice": (shared, shared),
        "queue": collections.deque([x], maxlen=3), "default": collections.defaultdict(list, {"a": [1]}),
        "sorted": torch.sort(x), "empty": (), "ordered": collections.OrderedDict(b=1, a=x),
    }  # fmt: skip
    value["itself"] = value
    flat = flatten(value)
    found = unflatten(flat.tree, flat.leaves)
    assert flatten(found).tree == flat.tree
    assert all(one is two for one, two in zip(flatten(found).leaves, flat.leaves, strict=True))
    assert (found["marked"].note, found["output"].note, found["output"]["logits"]) == ("attribute", "beside", x)
    assert found["twice"][0] is found["twice"][1] is not shared
    assert (found["queue"].maxlen, found["default"].default_factory, found["itself"]) == (3, list, found)
    assert type(found["sorted"]) is type(value["sorted"])


class Handed(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Hands out what it is told to, with what it computes."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.make = torch.nn.Linear(4, 4), make

    def forward(self, x: Any) -> Any:
        return self.make(self.layer(x))


class _Counting:
    """Not known to be a record."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclasses.dataclass
class _Locked:
    value: Any
    lock: Any


class _Subclass(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


class _OwnState(transformers.DynamicCache):  # type: ignore[misc, name-defined]
    def __getstate__(self) -> Any:
        return {}


REFUSED = [
    (_Counting, "_Counting"),
    (lambda y: _Locked(y, threading.Lock()), "lock"),
    (lambda y: [y.detach(), _OwnState()], "__getstate__ of its own"),
    (lambda y: {y: 1}, "keys that are no constants"),
]


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_objects_that_may_lose_something_are_refused_by_name(make: Any, why: str) -> None:
    x = torch.randn(2, 4)
    with pytest.raises(CaptureFailed, match=why):
        capture(Handed(make), (x,))
    with pytest.raises(BadInput, match=why):
        capture(Handed(lambda y: y), (make(x),))


def test_tensors_of_other_classes_are_refused_by_name() -> None:
    with pytest.raises(BadInput, match="_Subclass"):
        capture(Handed(lambda y: y), (torch.randn(2, 4).as_subclass(_Subclass),))


def test_containers_that_a_model_changes_are_changed() -> None:
    def forward(x: Any, notes: Any, seen: Any) -> Any:
        seen["last"] = x + 1
        notes.append(seen["last"] * 2)
        seen.pop("gone")
        return x.mul_(3), notes

    class Changing(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, notes: Any, seen: Any) -> Any:
            return forward(x, notes, seen)

    def arguments() -> Any:
        return torch.ones(3), ["first"], {"gone": 1, "kept": torch.zeros(2)}

    ours, plain = arguments(), arguments()
    model = Changing()
    run = executor(capture(model, arguments()), model, stay)
    result, expected = run(*ours), forward(*plain)
    assert result[1] is ours[1]
    for found, wanted in ((result, expected), (ours, plain)):
        assert _state(found) == _state(wanted)


def test_minus_zero_is_another_argument_than_zero() -> None:
    class Copies(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, scale: float) -> Any:
            return x * scale

    model, x = Copies(), torch.ones(2)
    run = executor(capture(model, (x, 0.0)), model, least)
    with pytest.raises(BadInput, match=r"-0\.0"):
        run(x, -0.0)


def test_cache_in_an_attribute_is_no_fake_after_a_capture() -> None:
    model, ids = made("mistral"), prompt(4)
    model.kept = transformers.DynamicCache(config=model.config)
    inner = model.forward
    model.forward = lambda ids: inner(ids, past_key_values=model.kept, use_cache=True).logits
    capture(model, (ids,))
    assert model.kept.get_seq_length() == 0
    assert not model.kept.layers[0].is_initialized
