"""Plans as values: text, JSON, the cache; times, lifetimes and rates."""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path

import pytest

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import Fabric
from openshelf.offload import cache
from openshelf.offload.planner import plan as plan_module
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.simulate import simulate
from openshelf.offload.program.lifetimes import lifetimes
from openshelf.offload.program.program import Op, Program, Storage
from openshelf.offload.program.rates import Lane, Rates
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait
from tests.offload.planner.optimum import least_seconds
from tests.offload.planner.programs import llama, small_program

FOREVER = 1e6  # seconds: the searches end by themselves, and a busy machine must not end them earlier
RATES = Rates(Lane(1e9, 1e-4), Lane(5e8, 1e-4), Lane(1e10, 1e-6), Lane(1e10, 1e-6))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def program() -> Program:
    return llama(2, 64, 16, vocabulary=128, train=True)


def small_plan(program: Program, **options: float) -> Plan:
    return make_plan(program, lifetimes(program).least * 2, RATES, time_limit=0.2, **options)  # type: ignore[arg-type]


def test_the_times_of_a_few_steps_by_hand() -> None:
    program = Program(
        (Op(0, "a", (0,), (), (1,), seconds=1.0), Op(1, "b", (1,), (), (2,), seconds=2.0)),
        (
            Storage(0, "w", 1 << 20, "weight", given=True),
            Storage(1, "x", 1 << 20, "activation"),
            Storage(2, "y", 1 << 20, "output", kept=True),
        ),
    )
    lane = Lane((1 << 20) / 0.5)  # half a second for each
    steps: list[Step] = [
        Prefetch(0, 0), Wait(0), Run(0, (1 << 20,)), Store(1), Detach(0), Run(1, (0,)), Store(2), Detach(1), Detach(2),
    ]  # fmt: skip
    times = simulate(program, steps, Rates(lane, lane, lane, lane), ["flash"] * 3, spans=True)
    assert times.seconds == pytest.approx(0.5 + 1 + 2 + 0.5)
    assert times.compute == pytest.approx(3)
    assert times.exposed == pytest.approx(1)
    assert times.waits == {1: pytest.approx(0.5), 8: pytest.approx(0.5)}
    assert times.busy["flash_read"] == pytest.approx(0.5)
    assert times.busy["flash_write"] == pytest.approx(1.0)
    assert times.peak == 2 << 20
    assert [(span.lane, span.name) for span in times.spans if span.start == pytest.approx(1.5)] == [
        ("flash_write", "x"), ("compute", "b"),
    ]  # fmt: skip
    slower = simulate(program, steps, Rates(lane, lane, lane, lane, slowdown=1.25), ["flash"] * 3)
    assert slower.seconds == pytest.approx(4 + 0.5 * (1 - 1 / 1.25))  # half a second of b goes with the Store of x
    called = simulate(program, steps, Rates(lane, lane, lane, lane, call_s=0.1), ["flash"] * 3)
    assert called.compute == pytest.approx(3 + 0.1 * sum(isinstance(step, Prefetch | Store) for step in steps))
    assert called.seconds == pytest.approx(called.compute + called.exposed)
    with pytest.raises(BadInput, match="call_s is the seconds"):
        Rates(lane, lane, lane, lane, call_s=-1)


def test_least_and_live_peak() -> None:
    page = 4096
    program = Program(
        (Op(0, "a", (0,), (), (1,), workspace=1), Op(1, "b", (1,), (2,))),
        (
            Storage(0, "w", page, "weight", given=True),
            Storage(1, "x", page + 1, "activation"),
            Storage(2, "s", 3 * page, "state", given=True, kept=True),
        ),
    )
    known = lifetimes(program)
    assert known.needs == (4 * page, 5 * page)
    assert (known.least, known.tightest, known.live_peak) == (5 * page, 1, 7 * page)
    assert known.written_back(program) == [2]


def test_a_program_that_reads_what_nobody_made_is_refused() -> None:
    program = Program((Op(0, "a", (0,)),), (Storage(0, "x", 1, "activation"),))
    with pytest.raises(BadInput, match=r"'x'.*must make it"):
        lifetimes(program)


def test_rates_of_a_fabric() -> None:
    fabric = Fabric.load("laptop")
    rates = Rates.of(fabric)
    for nbytes in (1 << 20, 1 << 30):
        assert rates.flash_read.seconds(nbytes) == pytest.approx(fabric.cost(nbytes, "disk", "dram").seconds)
        assert rates.flash_write.seconds(nbytes) == pytest.approx(fabric.cost(nbytes, "dram", "disk").seconds)
        assert rates.dram_read.seconds(nbytes) == pytest.approx(fabric.cost(nbytes, "dram", "dram").seconds)
    assert Rates.from_plain(json.loads(json.dumps(rates.to_plain()))) == rates


def test_json_and_back(program: Program) -> None:
    plan = small_plan(program, cache=False)
    assert Plan.from_plain(json.loads(json.dumps(plan.to_plain())), program) == plan


def test_a_plan_of_another_program_is_refused(program: Program) -> None:
    plain = small_plan(program, cache=False).to_plain()
    with pytest.raises(BadInput, match="make a new plan"):
        Plan.from_plain(plain, llama(1, 64, 16, vocabulary=128))


@pytest.mark.parametrize("harm", ["steps", "homes", "rates"])
def test_a_damaged_plan_is_refused(program: Program, harm: str) -> None:
    plain = small_plan(program, cache=False).to_plain()
    plain[harm] = plain[harm][:-1] if isinstance(plain[harm], list) else {}
    with pytest.raises(BadInput):
        Plan.from_plain(plain, program)


def test_the_second_time_comes_from_the_cache(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(program)
    (kept,) = cache.folder().iterdir()
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(plan_module, "search", None)  # would fail
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert small_plan(program) == plan


def test_other_questions_have_other_answers(program: Program) -> None:
    small_plan(program)
    small_plan(program, dram=1 << 20)
    make_plan(program, lifetimes(program).least * 3, RATES, time_limit=0.2)
    assert len(list(cache.folder().iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "other"])
def test_a_damaged_entry_is_made_anew(program: Program, damage: str) -> None:
    plan = small_plan(program)
    (kept,) = cache.folder().iterdir()
    good = kept.read_bytes()
    at = good.index(b'"steps":[[') + 12
    kept.write_bytes(
        {"cut": good[:-100], "bit": good[:at] + b"7" + good[at:], "empty": b"", "other": b"[1, 2]"}[damage]
    )
    with pytest.warns(UserWarning, match="made anew"):
        assert small_plan(program).budget == plan.budget
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small_plan(program)


def test_a_cache_that_cannot_be_written_is_said(program: Program, tmp_path: Path) -> None:
    (tmp_path / "openshelf").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot be used"), pytest.warns(UserWarning, match="could not be kept"):
        small_plan(program)


def test_the_report_has_the_figures(program: Program) -> None:
    plan = small_plan(program, cache=False)
    text = str(plan)
    assert f"{len(program.ops)} operators" in text
    for word in ("arena", "waiting for transfers", "flash read", "flash write", "layers.0.gate"):
        assert word in text


def test_explain_says_where_a_weight_is_and_why(program: Program) -> None:
    plan = small_plan(program, cache=False)
    text = plan.explain("layers.0.up")
    for word in ("weight of", "home: flash", "stay:", "leave:", "layers.0.up (#", "layers.0.up.adam_add (#"):
        assert word in text
    assert "make anew" in plan.explain("layers.0.silu.out")
    with pytest.raises(UnknownName, match="layers"):
        plan.explain("layers.9")


def test_without_highs_the_plan_says_so(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "highspy", None)
    slow = Rates(Lane(1e6), Lane(1e6), Lane(1e6), Lane(1e6))
    plan = make_plan(program, lifetimes(program).least * 2, slow, time_limit=0.2, cache=False)
    assert "pip install highspy" in str(plan)


@pytest.mark.soak
def test_close_to_the_optimum() -> None:
    pytest.importorskip("highspy")
    rates = Rates(Lane(2e9, 1e-6), Lane(1e9, 1e-6), Lane(1e10), Lane(1e10))
    gaps = []
    for seed in (1, 2, 6, 7, 8, 15, 19):
        rng = random.Random(seed)
        program = small_program(rng, rng.randint(5, 8))
        known = lifetimes(program)
        budget = int(known.least + rng.choice([0, 0.2, 0.5]) * max(0, known.live_peak - known.least)) // 4096 * 4096
        plan = make_plan(program, max(budget, known.least), rates, time_limit=FOREVER, cache=False)
        gaps.append(plan.times.seconds / least_seconds(program, plan.budget, rates, time_limit=FOREVER) - 1)
    assert all(gap <= 0.05 for gap in gaps), gaps


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_what_takes_so_long(
    program: Program, terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    small_plan(program, cache=False)
    assert capsys.readouterr().err == ("\r\x1b[Ksearching for a plan...\r\x1b[K" if terminal else "")
