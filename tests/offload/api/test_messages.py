"""What goes wrong in a model, or in a call, is said once, by an error of Openshelf that names the way out."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, CaptureFailed, UnknownName  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")
OPTIONS: dict[str, Any] = {"fabric": RATES, "cache": False, "time_limit": 0.05}


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3))


def test_a_wrong_shape_is_said_and_nothing_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(CaptureFailed, match=r"5.*4|4.*5"):
        offload.plan(torch.nn.Linear(4, 4), torch.ones(2, 5), "1MiB", **OPTIONS)
    assert not [one for one in caplog.records if one.name.startswith("torch")]
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


def test_an_error_in_a_module_of_torch_names_the_module_and_its_line() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4))
    with pytest.raises(CaptureFailed, match=r"^module '1' cannot be captured, at \S*modules/linear\.py:\d+ \("):
        offload.plan(model, torch.ones(2, 5), "1MiB", **OPTIONS)


def test_training_without_a_loss_says_which_is_missing() -> None:
    model = torch.nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureFailed, match=r"result, a Tensor, has no loss: .*give loss=, a function"):
        offload.plan(model, torch.ones(2, 4), "1MiB", optimizer=sgd, **OPTIONS)


def test_an_ndarray_is_answered_with_how_to_make_a_tensor_of_it() -> None:
    with pytest.raises(BadInput, match=r"is a numpy\.ndarray: .*torch\.from_numpy\(array\)"):
        offload.plan(torch.nn.Linear(4, 4), (np.ones((2, 4)),), "1MiB", **OPTIONS)


def test_another_shape_names_what_takes_any(ids: Any) -> None:
    model = net()
    with offload.plan(model, ids, "1MiB", **OPTIONS).load(model) as run:
        with pytest.raises(BadInput, match=r"offload\.buckets\(\).*offload\.wrap\(\)"):
            run(torch.zeros(2, 4, dtype=torch.long))


@pytest.fixture
def ids() -> Any:
    return torch.tensor([[1, 2, 3]])


def test_plans_are_made_in_inference_mode(ids: Any) -> None:
    model = net()
    with torch.inference_mode():
        plan = offload.plan(model, ids.clone(), "1MiB", **OPTIONS)
        with plan.load(model) as run:
            assert torch.equal(run(ids), model(ids))


def test_a_misspelt_name_is_answered_with_near_ones(ids: Any) -> None:
    plan = offload.plan(net(), ids, "1MiB", **OPTIONS)
    with pytest.raises(UnknownName, match=r"no storage 'wieght'; there is .*\.weight"):
        plan.explain("wieght")
    with pytest.raises(UnknownName, match=r"'1.wieght'; there is 1.weight"):
        plan.explain("1.wieght")
    with pytest.raises(UnknownName, match=r"there is \w"):
        plan.explain("???")


def test_an_operator_that_fails_is_named(ids: Any) -> None:
    model = net()
    with offload.plan(model, ids, "1MiB", **OPTIONS).load(model) as run:
        with pytest.raises(BadInput, match=r"aten\.embedding.* fails: \w+Error: .*out of range"):
            run(torch.tensor([[1, 2, 99]]))
        assert torch.equal(run(ids), model(ids))
