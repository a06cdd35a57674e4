"""Training steps: parts by cause, pipelines, memory, what does not fit, what does not divide, the best plan."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import Fabric
from openshelf.twin.ops import accelerator
from openshelf.twin.serve.model import find_model
from openshelf.workloads.train import (
    CHUNK,
    MODELS,
    Cluster,
    Model,
    Plan,
    activations_of_layer,
    collective_s,
    constants_of,
    fit_constants,
    gpt,
    memory_of,
    model_of,
    overlapped,
    run_events,
    search,
    step_of,
    why_not,
)
from tests.junk import raw_errors

A100 = Cluster(accelerator("a100_sxm"), 64, 8, 300e9, 25e9)
GPT3 = MODELS["gpt3-175b"]
SLOWER = constants_of("megatron").of(Plan())
PLAN = Plan(tp=8, pp=8, global_batch=64, recompute="full", flash=False)


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("interleaved", 3)])
@pytest.mark.parametrize("batch", [8, 64])
def test_events_equal_the_closed_form_where_nothing_contends(schedule: str, chunks: int, batch: int) -> None:
    plan = replace(PLAN, schedule=schedule, interleave=chunks, global_batch=batch)  # type: ignore[arg-type]
    seconds, events = run_events(GPT3, plan, A100, SLOWER)
    assert seconds == pytest.approx(step_of(GPT3, plan, A100, SLOWER).seconds, rel=1e-9)
    assert len(events) == 2 * batch * 8 * chunks


def test_no_stage_does_two_passes_at_once() -> None:
    _, events = run_events(GPT3, PLAN, A100, SLOWER)
    for stage in range(8):
        own = sorted((each.start_s, each.end_s) for each in events if each.stage == stage)
        assert all(before[1] <= after[0] + 1e-12 for before, after in pairwise(own))


def test_causes_add_up_and_bubbles_shrink_with_chunks_and_micro_batches() -> None:
    step = step_of(GPT3, PLAN, A100, SLOWER)
    assert sum(step.by_cause.values()) == pytest.approx(step.seconds)
    assert 0 < step.mfu < 1
    assert {"tp.inside", "pp.between"} <= step.exposed_s.keys()
    chunked = step_of(GPT3, replace(PLAN, schedule="interleaved", interleave=3), A100, SLOWER)
    assert chunked.seconds < step.seconds
    assert step_of(GPT3, replace(PLAN, global_batch=256), A100, SLOWER).mfu > step.mfu


def test_recomputation_costs_time_and_saves_memory() -> None:
    none, some, full = (replace(PLAN, recompute=how) for how in ("none", "selective", "full"))
    times = [step_of(GPT3, plan, A100, SLOWER).seconds for plan in (none, some, full)]
    held = [memory_of(GPT3, plan, A100).activations for plan in (none, some, full)]
    assert times == sorted(times)
    assert held == sorted(held, reverse=True)
    assert times[0] < times[2]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(flash=False), 34 + 80),
        (Plan(tp=8, flash=False), 10 + 24 / 8 + 80 / 8),
        (Plan(tp=8, sequence_parallel=True, flash=False), (34 + 80) / 8),
        (Plan(tp=8, sequence_parallel=True, recompute="selective", flash=False), 34 / 8),
        (Plan(tp=8, recompute="full", flash=False), 2),
    ],
)
def test_activations_are_those_of_the_published_formula(plan: Plan, expected: float) -> None:
    assert activations_of_layer(GPT3, plan) == pytest.approx(expected * 2048 * 12288, rel=0.05)


def test_sharding_by_zero_leaves_less_on_a_device() -> None:
    model = MODELS["llama3.1-8b"]
    kinds = [memory_of(model, Plan(dp=64, global_batch=64, zero=stage), A100) for stage in range(4)]
    assert kinds[1].optimizer == pytest.approx(kinds[0].optimizer / 64)
    assert kinds[2].gradients == pytest.approx(kinds[1].gradients / 64)
    assert kinds[3].weights == pytest.approx(kinds[2].weights / 64)


def test_what_does_not_fit_is_said_with_what_would_make_it_fit() -> None:
    text = why_not(MODELS["llama3.1-8b"], Plan(dp=64, global_batch=64), A100)
    assert "GB too much" in text
    assert "zero 1" in text or "offload" in text
    assert why_not(MODELS["llama3.1-8b"], Plan(dp=64, global_batch=64, zero=3, recompute="full"), A100) == ""


def test_degrees_that_do_not_divide_are_all_said() -> None:
    with pytest.raises(BadInput) as caught:
        step_of(GPT3, replace(PLAN, tp=7, global_batch=65, micro_batch=2), A100, SLOWER)
    for part in ("7 x 8 x 1 = 56, and there are 64", "96 heads do not divide by tp 7", "a batch of 65"):
        assert part in str(caught.value)
    with pytest.raises(BadInput, match="DualPipe wants an even pp"):
        Plan(pp=8, global_batch=8, schedule="dualpipe").check(GPT3)
    with pytest.raises(BadInput, match="there is weights, optimizer, activations"):
        Plan(offload=("weigths",)).check(GPT3)


def test_offload_hides_what_the_link_can_move_in_the_step() -> None:
    model, plan = MODELS["llama3.1-8b"], Plan(dp=64, global_batch=64, recompute="full")
    there = replace(plan, offload=("optimizer",))
    slow, fast = (replace(A100, host_bytes_per_s=rate) for rate in (1e9, 1e13))
    assert memory_of(model, there, A100).used < memory_of(model, plan, A100).used
    assert step_of(model, there, fast, SLOWER).by_cause["offload"] < 1e-3
    assert step_of(model, there, slow, SLOWER).by_cause["offload"] > 10


def test_offload_moves_what_the_device_itself_holds() -> None:
    slow = replace(A100, host_bytes_per_s=1e8)

    def moved(model: Model, **plan: Any) -> float:
        there = Plan(dp=64, global_batch=64, recompute="full", **plan)
        return step_of(model, there, slow, SLOWER).by_cause["offload"]

    dense, experts = MODELS["llama3.1-8b"], MODELS["mixtral-8x7b"]
    weights, optimizer = ("weights",), ("optimizer",)
    assert moved(experts, offload=weights, ep=8) < 0.3 * moved(experts, offload=weights)
    assert moved(dense, offload=weights, zero=3) < 0.1 * moved(dense, offload=weights)
    assert moved(replace(dense, lora=True), offload=optimizer) < 0.1 * moved(dense, offload=optimizer)


def test_experts_travel_and_are_counted() -> None:
    model = MODELS["mixtral-8x7b"]
    assert model.parameters == pytest.approx(46.7e9, rel=0.02)
    assert MODELS["deepseek-v3"].active_parameters == pytest.approx(37e9, rel=0.05)
    assert MODELS["deepseek-v3"].parameters == pytest.approx(671e9, rel=0.01)
    plan = Plan(dp=64, ep=8, global_batch=64)
    step = step_of(model, plan, A100, SLOWER)
    assert step.exposed_s["ep.inside"] > 0
    assert memory_of(model, plan, A100).weights < memory_of(model, replace(plan, ep=1), A100).weights


def test_collectives_cross_nodes_only_where_groups_do() -> None:
    assert collective_s(A100, "all_reduce", 1e9, 8, 1)[1] == 0
    inside, between = collective_s(A100, "all_reduce", 1e9, 8, 8)
    assert inside == 0
    assert between == pytest.approx(2 * 7 / 8 * 1e9 / 25e9, rel=0.01)
    assert collective_s(A100, "all_reduce", 1e9, 1, 1) == (0, 0)


def test_the_best_plan_is_no_slower_than_others_and_fits() -> None:
    found = search(GPT3, A100, constants_of("megatron"), 64, Plan(flash=False), most=200)
    assert all(step.memory.fits for step in found.best)
    assert [step.seconds for step in found.best] == sorted(step.seconds for step in found.best)
    assert found.best[0].seconds <= step_of(GPT3, PLAN, A100, SLOWER).seconds
    with pytest.raises(BadInput, match=r"none of .* plans fits"):
        search(MODELS["megatron-1t"], replace(A100, count=8), constants_of("megatron"), 8)


def test_constants_are_found_again() -> None:
    truth = SLOWER | {"compute": 2.0, "memory": 1.1, "inside": 1.5}
    plans = [replace(PLAN, tp=tp, dp=8 // tp, micro_batch=micro) for tp in (1, 2, 4, 8) for micro in (1, 2, 4)]
    models = [gpt("m", hidden, 48, 64, 2048) for hidden in (4096, 8192)]
    cases = [(m, p, A100, step_of(m, p, A100, truth).seconds) for m in models for p in plans]
    found = fit_constants(cases, ("compute", "memory", "inside"), SLOWER)
    assert found["compute"] == pytest.approx(2.0, rel=0.05)
    with pytest.raises(UnknownName, match="no constants 'megatorn'"):
        constants_of("megatorn")


def test_dualpipe_hides_tokens_on_their_way_until_they_take_longer() -> None:
    times = dict.fromkeys(CHUNK, 1.0)
    assert sum(chunk.exposed_s for chunk in overlapped([times] * 4)[1:]) <= 4
    hidden = {part: 0.1 if part.startswith(("dispatch", "combine")) else 1.0 for part in CHUNK}
    exposed = {part: 3.0 if part.startswith(("dispatch", "combine")) else 1.0 for part in CHUNK}
    short, long = (overlapped([each] * 4) for each in (hidden, exposed))
    assert sum(chunk.exposed_s for chunk in short[1:]) < 0.7
    assert sum(chunk.exposed_s for chunk in long) > 10


def test_a_transformers_config_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu", "max_position_embeddings": 8192,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    found = model_of(str(path))
    assert found.parameters == MODELS["llama3.1-8b"].parameters
    assert found.parameters == pytest.approx(8.03e9, rel=0.01)
    path.write_text(json.dumps({"hidden_size": 64}))
    with pytest.raises(BadInput, match="num_hidden_layers"):
        model_of(str(path))
    with pytest.raises(UnknownName, match="no model 'gpt3-175'"):
        model_of("gpt3-175")


def test_a_cluster_is_taken_from_a_fabric() -> None:
    found = Cluster.of(Fabric.load("dgx-h100-ib"))
    assert (found.count, found.node, found.accelerator.name) == (256, 8, "h100_sxm")
    assert found.node_bytes_per_s > 5 * found.net_bytes_per_s


FABRIC = """
name: mine
endpoint: gpu
places:
  - name: hbm
    tier: device
    capacity_bytes: {value: 80e9, source: assumed}
    read_bandwidth_bytes_per_s: {value: 2e12, source: assumed}
    write_bandwidth_bytes_per_s: {value: 2e12, source: assumed}
    latency_s: {value: 5e-7, source: assumed}
compute:
  - {name: host, place: hbm}
  - {name: gpu, place: hbm, gemm: [{dtype: bfloat16, rate_flop_per_s: {value: 3e14, source: assumed}}]}
wires:
  - {name: wire, protocol: infiniband, bandwidth_bytes_per_s: {value: 5e10, source: assumed}, latency_s: {value: 1e-6,
     source: assumed}}
switches:
  - {name: switch, ports: 64, port_bandwidth_bytes_per_s: {value: 5e10, source: assumed}, latency_s: {value: 2e-7,
     source: assumed}}
topology:
  single_switch: {endpoints: 16, link: wire, switch: switch}
"""


def cluster_of(folder: Path, text: str) -> Cluster:
    path = folder / "mine.yaml"
    path.write_text(text)
    return Cluster.of(Fabric.load(str(path)))


def test_a_cluster_has_the_accelerator_at_its_endpoints_or_says_what_is_missing(tmp_path: Path) -> None:
    assert cluster_of(tmp_path, FABRIC).accelerator.name == "gpu"
    with pytest.raises(
        BadInput, match="'host' of fabric 'mine' is no known accelerator and has no rates: add its `gemm`"
    ):
        cluster_of(tmp_path, FABRIC.replace("endpoint: gpu", "endpoint: host"))
    without = FABRIC[: FABRIC.index("compute:")] + FABRIC[FABRIC.index("wires:") :]
    with pytest.raises(BadInput, match="has no compute: describe its accelerator"):
        cluster_of(tmp_path, without.replace("endpoint: gpu\n", ""))


def test_an_error_is_claimed_only_where_steps_were_measured(tmp_path: Path) -> None:
    hopper = constants_of("nemo-hopper")
    assert hopper.accuracy(Cluster.of(Fabric.load("dgx-h100-ib")), "fp8").startswith("about 4 % off")
    assert "in bfloat16 nothing was measured" in hopper.accuracy(Cluster.of(Fabric.load("dgx-h100-ib")), "bfloat16")
    mine = cluster_of(tmp_path, FABRIC)
    assert constants_of("auto", mine).accuracy(mine, "bfloat16").startswith("on gpu in bfloat16 nothing was measured")


def test_a_model_has_the_names_that_people_give_it() -> None:
    for name in ("llama3.1-8b", "llama-3.1-8b", "Llama-3.1-8B"):
        assert model_of(name) is MODELS["llama3.1-8b"]
        assert find_model(name).name == "llama-3.1-8b"
    with pytest.raises(UnknownName, match=r"config.json; did you mean 'llama3.1-8b'"):
        model_of("llama3.1-8c")


def test_a_plan_of_wrong_kinds_or_words_is_refused() -> None:
    cluster, model = Cluster.of(Fabric.load("dgx-h100-ib")), model_of("llama3.1-8b")
    constants = constants_of("auto", cluster)
    good = {"dp": 128, "tp": 2, "global_batch": 256}
    words: dict[str, Any] = {"micro_batch": 0.5, "recompute": "ful", "schedule": "1f1", "dtype": "fp9", "flash": "no"}
    for name, value in words.items():
        with pytest.raises(BadInput, match=f"{name} is {value!r}; expected"):
            step_of(model, Plan(**{**good, name: value}), cluster, constants.of(Plan()))
    with pytest.raises(BadInput, match="offload is 'optimizer'; expected a tuple of weights, optimizer, activations"):
        step_of(model, Plan(**good, offload="optimizer"), cluster, constants.of(Plan()))  # type: ignore[arg-type]
    for field in fields(Plan):

        def run(junk: Any, name: str = field.name) -> None:
            step_of(model, Plan(**{**good, name: junk}), cluster, constants.of(Plan()))

        assert raw_errors(run) == [], field.name
    assert raw_errors(model_of) == []
    assert raw_errors(lambda junk: model_of("llama3.1-8b", junk)) == []
    assert raw_errors(lambda junk: Cluster.of(junk)) == []
    assert raw_errors(lambda junk: constants_of(junk, cluster)) == []
