"""Plans at budgets from all that a model needs down to the least, run from flash, equal plain PyTorch bit for bit."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openshelf import offload  # noqa: E402
from openshelf.errors import BadInput, Closed, Corrupt, Mismatch, NoRoom, UnknownName  # noqa: E402
from openshelf.offload.planner.plan import make_plan  # noqa: E402
from openshelf.offload.program.lifetimes import ALIGNMENT, lifetimes  # noqa: E402
from openshelf.offload.run.compare import BEHIND, MARK, _written  # noqa: E402
from tests.offload.models import MODELS, batch, llama, made, same, twins  # noqa: E402
from tests.offload.rates import RATES  # noqa: E402
from tests.processes import Peer, State  # noqa: E402

SHARES = (1.0, 0.5, 0.25, 0.1)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def planned(
    model: Any, inputs: dict[str, Any], share: float, dram: int = 0, stay: bool = True, **more: Any
) -> offload.ModelPlan:
    """With so much of what the model needs, or the least that works."""
    full = offload.plan(model, inputs, "1GiB", fabric=RATES, cache=False, time_limit=0.1, **more)
    known = lifetimes(full.captured.program)
    budget = max(int(known.live_peak * share), known.least)
    made = make_plan(full.captured.program, budget, RATES, dram=dram, stay=stay, time_limit=0.3, cache=False)
    assert made.peak <= budget
    return offload.ModelPlan(full.captured, made, ((), inputs))


@pytest.mark.parametrize(
    "share", [pytest.param(one, marks=[pytest.mark.soak] if one in (1.0, 0.5) else []) for one in SHARES]
)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_at_every_budget(name: str, share: float) -> None:
    model, plain = (one.eval() for one in twins(name))
    with planned(model, batch(name), share).load(model) as run:
        for seed in (1, 2):
            ours = run(**batch(name, seed))
            with torch.no_grad():
                expected = plain(**batch(name, seed))
            assert same([ours.loss, ours.logits], [expected.loss, expected.logits])


@pytest.mark.parametrize("share", [*(pytest.param(share, marks=pytest.mark.soak) for share in SHARES[:3]), *SHARES[3:]])
@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps_at_every_budget(name: str, share: float, two_threads: None) -> None:
    model, plain = (one.train() for one in twins(name))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    ours = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with planned(model, batch(name), share, optimizer=ours).load(model) as run:
        for step in range(20):
            torch.manual_seed(step)
            (loss,) = run(**batch(name, step))
            torch.manual_seed(step)
            optimizer.zero_grad()
            expected = plain(**batch(name, step)).loss
            expected.backward()
            optimizer.step()
            assert same([loss], [expected]), step
        found, wanted = run.state_dict(), plain.state_dict()
        assert all(same([found[key]], [wanted[key]]) for key in found)
        assert set(dict(plain.named_parameters())) <= set(found)


def test_gradients_of_a_plan_without_an_optimizer() -> None:
    model, plain = (one.train() for one in twins("llama"))
    with planned(model, batch("llama"), 0.25, train=True).load(model) as run:
        run(**batch("llama", 3))
        plain(**batch("llama", 3)).loss.backward()
        for name, found in run.gradients().items():
            assert same([found], [dict(plain.named_parameters())[name].grad]), name


def test_host_memory_takes_what_it_is_given() -> None:
    model, plain = (one.train() for one in twins("qwen"))
    ours = torch.optim.Adam(model.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(plain.parameters(), lr=1e-3)
    with planned(model, batch("qwen"), 0.25, optimizer=ours, dram=300 << 10).load(model) as run:
        for step in range(3):
            run(**batch("qwen", step))
            theirs.zero_grad()
            plain(**batch("qwen", step)).loss.backward()
            theirs.step()
        assert run.lanes()["dram_read"].nbytes > 0
        assert run.lanes()["flash_read"].nbytes > 0
        found = run.state_dict()
        assert all(same([found[key]], [value]) for key, value in plain.named_parameters())


def test_saved_run_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    model, plain = (one.train() for one in twins("llama"))
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    for step in range(6):
        theirs.zero_grad()
        plain(**batch("llama", step)).loss.backward()
        theirs.step()
    plan = planned(model, batch("llama"), 0.25, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))
    with plan.load(model) as run:
        for step in range(3):
            run(**batch("llama", step))
        run.save(tmp_path / "after3")
        run(**batch("llama", 77))  # not in the checkpoint
    with plan.load(tmp_path / "after3") as run:
        for step in range(3, 6):
            run(**batch("llama", step))
        found = run.state_dict()
    assert all(same([found[key]], [value]) for key, value in plain.named_parameters())


def test_checkpoint_of_shards_is_streamed_for_a_model_without_weights(tmp_path: Path) -> None:
    model = made("gpt2").eval()
    model.save_pretrained(tmp_path / "model", max_shard_size="60KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    with torch.device("meta"):
        empty = type(model)(model.config).eval()
    empty.loss_type = "ForCausalLM"
    plan = planned(empty, batch("gpt2"), 0.25)
    for _ in range(2):  # packed, then found packed
        with plan.load(tmp_path / "model") as run, torch.no_grad():
            assert same([run(**batch("gpt2", 4)).logits], [model(**batch("gpt2", 4)).logits])
    with pytest.raises(BadInput, match="meta device"):
        plan.load(empty)


def test_prediction_is_compared_with_a_run() -> None:
    model = made("llama").train()
    plan = planned(model, batch("llama"), 0.5, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.state_dict()["lm_head.weight"].clone()
    check = plan.check(repeats=2)
    assert check.predicted_s == plan.plan.times.seconds > 0
    assert check.measured_s > 0
    assert check.lanes["flash_read"].nbytes > 0
    assert check.predicted_peak == plan.peak
    assert "measured" in str(check)
    assert plan.captured.updates is not None
    assert plan.captured.updates.step == 0
    assert torch.equal(model.state_dict()["lm_head.weight"], before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("trains", [False, True])
def test_memory_is_what_was_predicted(name: str, trains: bool) -> None:
    model = made(name).train(trains)
    optimizer = {"optimizer": torch.optim.AdamW(model.parameters())} if trains else {}
    check = planned(model, batch(name), 0.4, **optimizer).check(repeats=1)
    assert abs(check.peak_error) <= 0.01, check


def test_bytes_written_behind_the_arena_are_seen() -> None:
    marked = torch.full((BEHIND + 3 * ALIGNMENT,), MARK, dtype=torch.uint8)
    assert _written(marked) == 0
    for place, pages in ((0, 1), (ALIGNMENT - 1, 1), (ALIGNMENT, 2), (BEHIND + 3 * ALIGNMENT - 1, 259)):
        marked[place] = 0
        assert _written(marked) == pages * ALIGNMENT


def test_neither_model_nor_optimizer_is_held() -> None:
    model = made("llama").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with planned(model, batch("llama"), 0.5, optimizer=optimizer).load(model) as run:
        parameters = [weakref.ref(one) for one in model.parameters()]
        del model, optimizer
        gc.collect()
        assert [one() for one in parameters] == [None] * len(parameters)
        assert run(**batch("llama")) is not None


@pytest.mark.parametrize("stay", [True, False])
def test_state_is_complete_wherever_it_is(stay: bool, tmp_path: Path) -> None:
    ours, plain = (one.train() for one in twins("llama"))
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01, foreach=False)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.01, foreach=False)
    plan = planned(ours, batch("llama"), 0.5, stay=stay, optimizer=optimizer)
    assert bool(plan.plan.stays) == stay
    with plan.load(ours) as run:
        for seed in (1, 2):
            run(**batch("llama", seed))
            theirs.zero_grad()
            plain(**batch("llama", seed)).loss.backward()
            theirs.step()
        assert same(run.state_dict().values(), [plain.state_dict()[name] for name in run.state_dict()])
        run.save(tmp_path / "saved")
        on = run(**batch("llama", 3))
    with plan.load(tmp_path / "saved") as again:
        assert same(again(**batch("llama", 3)), on)


def test_plan_tells_what_it_does() -> None:
    plan = planned(made("llama").eval(), batch("llama"), 0.25)
    assert "without moving" in str(plan)
    assert "beside" in str(plan)
    assert "weight" in plan.explain("model.layers.1.mlp.up_proj.weight")
    with pytest.raises(UnknownName, match=r"up_proj"):
        plan.explain("up_proj")


# Errors


def test_budget_too_small_names_the_least() -> None:
    model = made("llama").eval()
    with pytest.raises(NoRoom, match="the least that works is") as error:
        offload.plan(model, batch("llama"), 100, fabric=RATES)
    least = int(str(error.value).rsplit(" ", 2)[-2])
    assert offload.plan(model, batch("llama"), least, fabric=RATES, time_limit=0.1).peak <= least
    with pytest.raises(NoRoom):
        offload.plan(model, batch("llama"), least - 4096, fabric=RATES)


def test_model_that_changed_since_the_plan_is_refused() -> None:
    plan = planned(made("llama").eval(), batch("llama"), 0.5)
    with pytest.raises(Mismatch, match="changed since"):
        plan.load(llama(intermediate_size=128).eval())
    with pytest.raises(Mismatch, match=r"LlamaForCausalLM, and is a torch\.nn.*make a new plan"):
        plan.load(torch.nn.Linear(2, 2).eval())
    with pytest.raises(BadInput, match="the model or the path"):
        plan.load(3)


def test_other_shapes_are_refused_and_the_run_goes_on() -> None:
    model = made("llama").eval()
    with planned(model, batch("llama"), 0.5).load(model) as run:
        good = run(**batch("llama", 1)).logits
        with pytest.raises(BadInput, match=r"offload.buckets\(\) for inputs of any length, or offload.wrap"):
            run(input_ids=torch.zeros(1, 3, dtype=torch.long), labels=torch.zeros(1, 3, dtype=torch.long))
        assert same([run(**batch("llama", 1)).logits], [good])
    with pytest.raises(Closed):
        run(**batch("llama", 1))


def test_altered_weights_are_refused(tmp_path: Path, own_cache: Path) -> None:
    model = made("llama").eval()
    model.save_pretrained(tmp_path / "model")
    plan = planned(model, batch("llama"), 0.5)
    plan.load(tmp_path / "model").close()
    (packed,) = own_cache.rglob("*.packed")
    with packed.open("r+b") as file:
        file.seek(-4096 * 3, os.SEEK_END)
        old = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([old[0] ^ 1]))
    with plan.load(tmp_path / "model") as run:
        for _ in range(2):
            with pytest.raises(Corrupt, match=r"\.weight"):
                run(**batch("llama", 1))


class Interrupted(BaseException):
    """As Ctrl-C."""


def interrupting(number: int) -> Callable[[Any], None]:
    """Runs instructions up to the one of this number."""
    left = [number]

    def run(one: Any) -> None:
        if not left[0]:
            raise Interrupted
        left[0] -= 1
        one[0](*one[1], **one[2])

    return run


def test_a_run_that_fails_anywhere_can_be_called_again() -> None:
    model = made("llama").eval()
    with torch.no_grad(), planned(model, batch("llama"), 0.25).load(model) as run:
        expected, number = model(**batch("llama", 3)).logits, 0
        while True:
            assert run._executor is not None
            try:
                with run._executor.watched(interrupting(number)):
                    run(**batch("llama", number))
            except Interrupted:
                assert same([run(**batch("llama", 3)).logits], [expected])
                number += 1
            else:
                break
        assert number > 100
        assert run.lanes()["flash_read"].nbytes > 0


def test_ids_out_of_range_are_an_error_and_the_run_goes_on() -> None:
    model = made("llama").eval()
    wrong = {name: torch.full_like(one, 100_000) for name, one in batch("llama").items()}
    with torch.no_grad(), planned(model, batch("llama"), 0.25).load(model) as run:
        with pytest.raises(BadInput, match="index out of range"):
            run(**wrong)
        assert same([run(**batch("llama", 3)).logits], [model(**batch("llama", 3)).logits])


def test_a_step_of_training_that_fails_half_way_ends_the_run(tmp_path: Path) -> None:
    model = made("llama").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with planned(model, batch("llama"), 0.5, optimizer=optimizer).load(model) as run:
        run(**batch("llama"))
        with pytest.raises(Interrupted), run._executor.watched(interrupting(50)):  # type: ignore[union-attr]
            run(**batch("llama"))
        for asked in (lambda: run(**batch("llama")), run.state_dict, lambda: run.save(tmp_path / "torn")):
            with pytest.raises(Closed, match="failed half-way"):
                asked()
    assert not (tmp_path / "torn").exists()


def test_replicas_share_the_weights(tmp_path: Path, home: Path) -> None:
    model = made("gpt2").eval()
    model.save_pretrained(tmp_path / "model")
    plan = planned(model, batch("gpt2"), 0.25)
    with plan.load(tmp_path / "model", share=True) as one, plan.load(tmp_path / "model", share=True) as two:
        with torch.no_grad():
            expected = model(**batch("gpt2", 4)).logits
        for run in (one, two):
            assert same([run(**batch("gpt2", 4)).logits], [expected])
            assert run.lanes()["flash_read"].nbytes < run.lanes()["dram_read"].nbytes
    with pytest.raises(BadInput, match="checkpoint that all processes can open"):
        plan.load(model, share=True)


def train_for_ever(state: State) -> None:
    model = made("llama").train()
    run = planned(model, batch("llama"), 0.25, optimizer=torch.optim.AdamW(model.parameters())).load(model)
    while True:
        run(**batch("llama"))


def test_killed_run_leaves_nothing_behind(own_cache: Path) -> None:
    peer = Peer()
    peer.start(train_for_ever)
    deadline = time.monotonic() + 300
    while str(own_cache) not in _open_files(peer.pid):
        assert time.monotonic() < deadline, "planning and loading never ended"
        time.sleep(0.05)
    time.sleep(0.5)
    peer.kill()
    assert [path for path in own_cache.rglob("*") if path.is_file() and path.stat().st_size > 1 << 12] == []


def _open_files(pid: int) -> str:
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return " ".join(found)
