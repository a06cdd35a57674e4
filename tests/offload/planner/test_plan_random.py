"""Any program at any budget that is enough: the plan keeps all rules, and gives the bytes that plain running gives."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.errors import NoRoom
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.verify import check_steps
from openshelf.offload.program.lifetimes import ALIGNMENT, lifetimes
from openshelf.offload.program.program import Op, Program
from openshelf.offload.program.rates import Lane, Rates
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait
from tests.offload.planner.programs import llama, small_program

FAST = Rates(Lane(3e9, 1e-4), Lane(2e9, 1e-4), Lane(1e10, 1e-6), Lane(1e10, 1e-6))
SLOW = Rates(Lane(2e6, 1e-6), Lane(1e6, 1e-6), Lane(2e7), Lane(2e7), slowdown=1.2)


def value(op: Op, which: int, inputs: Sequence[bytes], nbytes: int) -> bytes:
    """What an imagined operator writes: it depends on all bytes that it reads."""
    seed = hashlib.sha256(repr((op.index, which)).encode())
    for one in inputs:
        seed.update(one)
    return np.random.default_rng(np.frombuffer(seed.digest(), np.uint32)).bytes(nbytes)


def given_bytes(program: Program) -> dict[int, bytes]:
    return {x.index: np.random.default_rng(x.index).bytes(x.nbytes) for x in program.storages if x.given}


def run_op(program: Program, op: Op, read: Callable[[int], bytes], write: Callable[[int, bytes], None]) -> None:
    inputs = [read(s) for s in dict.fromkeys(op.reads + op.changes)]
    for s in op.changes + op.makes:
        write(s, value(op, s, inputs, program.storages[s].nbytes))


def run_plainly(program: Program) -> dict[int, bytes]:
    values = given_bytes(program)
    for op in program.ops:
        run_op(program, op, values.__getitem__, values.__setitem__)
    return {x.index: values[x.index] for x in program.storages if x.kept and x.index in values}


def run_steps(program: Program, steps: Sequence[Step], budget: int) -> dict[int, bytes]:
    """The steps on a real arena. A transfer is done when it is begun; what is free or workspace is overwritten."""
    arena = np.random.default_rng(0).integers(0, 256, budget, np.uint8)
    homes = given_bytes(program)
    at: dict[int, int] = {}

    def read(s: int) -> bytes:
        return arena[at[s] : at[s] + program.storages[s].nbytes].tobytes()

    def write(s: int, data: bytes) -> None:
        arena[at[s] : at[s] + len(data)] = np.frombuffer(data, np.uint8)

    for step in steps:
        match step:
            case Prefetch(s, offset):
                at[s] = offset
                write(s, homes[s])
            case Store(s):
                homes[s] = read(s)
            case Detach(s):
                write(s, bytes(program.storages[s].nbytes))
                del at[s]
            case Run(number, offsets):
                op = program.ops[number]
                at.update(zip(op.makes, offsets, strict=False))
                if op.workspace:
                    arena[offsets[-1] : offsets[-1] + op.workspace] = 255
                run_op(program, op, read, write)
            case Wait(_):
                pass
    return {x.index: homes[x.index] for x in program.storages if x.kept and x.index in homes}


def budget_of(program: Program, part: float) -> int:
    known = lifetimes(program)
    return int(known.least + part * max(0, known.live_peak - known.least))


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), ops=st.integers(1, 14), part=st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]),
    rates=st.sampled_from([FAST, SLOW]), dram=st.sampled_from([0, 20000, 1 << 20]),
)  # fmt: skip
def test_any_program_at_any_budget(seed: int, ops: int, part: float, rates: Rates, dram: int) -> None:
    program = small_program(random.Random(seed), ops)
    budget = budget_of(program, part)
    plan = make_plan(program, budget, rates, dram=dram, time_limit=0.05, cache=False)
    check_steps(program, plan.steps, budget)
    assert plan.peak <= budget
    assert plan.times.peak <= plan.peak
    assert sum(x.nbytes for x, home in zip(program.storages, plan.homes, strict=True) if home == "dram") <= dram
    assert run_steps(program, plan.steps, budget) == run_plainly(program)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("part", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("rates", [FAST, SLOW])
def test_a_llama_gives_the_same_bytes(train: bool, part: float, rates: Rates) -> None:
    program = llama(3, 64, 16, vocabulary=128, train=train)
    budget = budget_of(program, part)
    plan = make_plan(program, budget, rates, time_limit=0.3, cache=False)
    assert run_steps(program, plan.steps, budget) == run_plainly(program)


def test_running_again_gives_the_same_bytes() -> None:
    program = llama(2, 64, 256, vocabulary=128, train=True)
    budget = budget_of(program, 0.1)
    dear = Rates(Lane(1e9), Lane(5e8), Lane(2e7), Lane(2e7))
    plan = make_plan(program, budget, dear, time_limit=1.0, cache=False)
    runs = sum(isinstance(step, Run) for step in plan.steps)
    assert runs > len(program.ops)
    assert run_steps(program, plan.steps, budget) == run_plainly(program)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), ops=st.integers(1, 12))
def test_one_page_below_the_least_is_refused_by_name(seed: int, ops: int) -> None:
    program = small_program(random.Random(seed), ops)
    known = lifetimes(program)
    with pytest.raises(NoRoom, match=rf"{program.ops[known.tightest].name!r}.*{known.least} bytes"):
        make_plan(program, known.least - 1, FAST, cache=False)


def test_everything_fits_so_each_storage_moves_once() -> None:
    program = llama(2, 64, 16, vocabulary=128, train=True)
    plan: Plan = make_plan(program, lifetimes(program).live_peak + (4 << 20), FAST, time_limit=0.5, cache=False)
    reads = [step.storage for step in plan.steps if isinstance(step, Prefetch)]
    assert len(reads) == len(set(reads))
    assert plan.budget % ALIGNMENT == 0


def test_streaming_is_bound_by_the_lane_or_by_computing() -> None:
    for tokens in (16, 256):
        program = llama(28, 1024, tokens, vocabulary=8192)
        plan = make_plan(program, 256 << 20, FAST, time_limit=1.0, cache=False)
        reads = [FAST.flash_read.seconds(x.nbytes) for x in program.storages if x.given]
        computing = sum(op.seconds for op in program.ops)
        assert plan.times.seconds <= 1.02 * max(computing, sum(reads)) + max(reads[:2])
