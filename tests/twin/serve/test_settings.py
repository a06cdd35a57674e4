"""Models, laws, measured settings, traces with holes, what does not fit, and differences that are not shown."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openshelf.errors import BadInput, NoRoom, UnknownName
from openshelf.twin.ops import accelerator, accelerators, kind_of, law_of
from openshelf.twin.serve import (
    NO_DIFFERENCE,
    Engine,
    Plan,
    Scenario,
    ServedModel,
    StepLaw,
    assumed_of,
    closed_form,
    difference,
    drawn,
    drawn_of_clients,
    error_of,
    find_model,
    fit_law,
    grid,
    is_clients,
    made_of,
    model_names,
    predict,
    read_requests,
    read_settings,
    rows_of,
    run_scenario,
    serve,
    shipped,
    sweep,
    times_of_law,
    work_of,
)

HEADER = ",".join(
    [
        "origin,measured,concurrency,backend,backend_version,model,system,precision,mode,isl,osl",
        "gemm_quant_mode,moe_quant_mode,batch,tp,pp,attention_dp,moe_tp,moe_ep",
        *(
            f"{side}_{name}"
            for side in ("prefill", "decode")
            for name in ("num_workers", "tp", "attention_dp", "moe_tp", "moe_ep")
        ),
        "ttft_ms,tpot_ms",
    ]
)


def line(
    model: str, clients: int, tp: int, ttft: float, tpot: float, moe: tuple[int, int] = (1, 1), system: str = "h100_sxm"
) -> str:
    cut = f"{tp},1,1,{moe[0]},{moe[1]}" + "," * 10
    return f"x,,{clients},vllm,,{model},{system},fp8,agg,1024,256,fp8,fp8,{clients},{cut},{ttft},{tpot}"


def test_parameters_are_those_that_models_are_named_after() -> None:
    for name, billions in {
        "llama-3.1-8b": 8.0,
        "meta-llama/Llama-3.1-70B-Instruct": 70.6,
        "Qwen/Qwen3-32B": 32.8,
        "openai/gpt-oss-120b": 116.8,
        "deepseek-ai/DeepSeek-R1": 671,
        "Qwen3-235B-A22B": 235,
        "mixtral-8x7b": 46.7,
        "kimi-k2-instruct": 1027,
    }.items():
        assert find_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.03), name


def test_a_config_json_and_a_preset_of_the_same_model_are_equal_in_size(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = find_model(str(tmp_path / "config.json"))
    assert found.parameters == find_model("llama-3.1-8b").parameters
    assert found.kv_bytes() == 131_072
    with pytest.raises(UnknownName, match="give a config"):
        find_model("no-such-model")


def test_where_experts_are_cut_both_ways_tp_is_not_the_number_of_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "e2e.csv"
    path.write_text("\n".join([HEADER, line("deepseek-ai/DeepSeek-R1", 8, 64, 100, 10, (8, 8), "b200_sxm")]))
    settings, _ = read_settings(path)
    assert settings[0].plan.accelerators == 8


def test_repeats_are_one_setting_and_strangers_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "e2e.csv"
    known = [line("Qwen/Qwen3-32B", 8, 2, ttft, 10) for ttft in (100, 200, 900)]
    path.write_text("\n".join([HEADER, *known, line("nobody/knows", 8, 2, 1, 1)]))
    settings, refused = read_settings(path)
    assert len(settings) == 1
    assert settings[0].ttft_s == pytest.approx(0.2)
    assert len(refused) == 1
    assert "line 5" in refused[0]


def test_a_fit_finds_the_constants_that_made_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "e2e.csv"
    lines = [
        line(model, clients, tp, 1, 1)
        for model in ("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B")
        for clients in (4, 16, 64)
        for tp in (2, 4, 8)
    ]
    path.write_text("\n".join([HEADER, *lines]))
    rows = rows_of(read_settings(path)[0])
    truth = StepLaw(memory=0.7, operator_s=6e-6)
    ttft, tpot = closed_form(truth, rows)
    rows.ttft_s[:], rows.tpot_s[:] = ttft, tpot
    names = np.arange(len(tpot)) < 9  # one model
    found = closed_form(fit_law(rows, ~names), rows)[1]
    before = closed_form(StepLaw(), rows)[1]
    after, at_first = (np.abs(each / tpot - 1)[names].max() for each in (found, before))
    assert after < 0.6 * at_first  # 18 rows against priors


def test_simulation_and_closed_form_agree_where_nothing_waits(tmp_path: Path) -> None:
    path = tmp_path / "e2e.csv"
    path.write_text("\n".join([HEADER, line("meta-llama/Llama-3.1-70B", 1, 4, 100, 10)]))
    settings, _ = read_settings(path)
    ttft, tpot = closed_form(shipped(), rows_of(settings))
    told = predict(settings[0], shipped())
    assert told.tpot_s == pytest.approx(tpot[0], rel=0.02)
    assert told.ttft_s == pytest.approx(ttft[0], rel=0.1)


def test_simulation_and_closed_form_agree_where_clients_wait_for_prompts_of_others(tmp_path: Path) -> None:
    path = tmp_path / "e2e.csv"
    models = ("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B")
    path.write_text("\n".join([HEADER, *(line(model, 32, 2, 100, 10) for model in models)]))
    settings, _ = read_settings(path)
    ttft, tpot = closed_form(shipped(), rows_of(settings))
    for at, each in enumerate(settings):
        told = predict(each, shipped())
        assert told.tpot_s == pytest.approx(tpot[at], rel=0.05)
        assert told.ttft_s == pytest.approx(ttft[at], rel=0.3)


def test_a_step_with_prompts_is_launched_kernel_by_kernel() -> None:
    model = find_model("llama-3.1-8b")
    work = work_of(model, accelerator("h100"), Plan())
    with_graphs, without = (times_of_law(StepLaw(eager_s=(each,) * 3), work, "vllm") for each in (0.0, 1e-5))
    one = (with_graphs, without)
    prompts = [serve(made_of([0.0], [100], [1]), Engine(100), each).first_s[0] for each in one]
    decodes = [serve(made_of([0.0], [100], [11]), Engine(100), each) for each in one]
    launches = 1e-5 * model.layers * model.operators
    assert prompts[1] - prompts[0] == pytest.approx(launches)
    assert decodes[1].last_s - decodes[1].first_s == pytest.approx(decodes[0].last_s - decodes[0].first_s)


def test_computing_is_as_slow_as_the_operators_of_that_accelerator_and_dtype() -> None:
    model = find_model("llama-3.1-8b")
    half, eight = (work_of(model, accelerator("b200"), Plan(dtype=each)) for each in ("bfloat16", "fp8"))
    laws = [law_of(kind_of("gemm"), "b200_sxm", {"dtype": each}).slower["compute"] for each in ("bfloat16", "fp8")]
    assert half.linear_token_s / eight.linear_token_s == pytest.approx(2 * laws[0] / laws[1])


def test_mxfp4_is_a_format_of_weights() -> None:
    model = find_model("gpt-oss-120b")
    hopper, blackwell = (work_of(model, accelerator(each), Plan()) for each in ("h200", "b200"))
    laws = [
        law_of(kind_of("moe"), device, {"dtype": dtype, "routing": "balanced"}).slower["compute"]
        for device, dtype in (("h200_sxm", "w4a16_mxfp4"), ("b200_sxm", "nvfp4"))
    ]
    rates = accelerator("h200").peak("bfloat16") / laws[0], accelerator("b200").peak("fp8") / laws[1]
    assert hopper.expert_token_s / blackwell.expert_token_s == pytest.approx(rates[1] / rates[0])
    assert hopper.experts_s / blackwell.experts_s == pytest.approx(8.0 / 4.8)


def test_more_accelerators_make_a_step_shorter_until_its_kernels_are_all_that_is_left() -> None:
    law, model = shipped(), find_model("llama-3.1-70b")
    one, eight = (law.dense(work_of(model, accelerator("h100"), Plan(tensor, dtype="fp8")), 8.0) for tensor in (1, 8))
    assert 2 < one / eight < 8


def test_heads_that_cannot_be_shared_are_said() -> None:
    with pytest.raises(BadInput, match="64 heads, which 3 accelerators cannot share"):
        run_scenario(Scenario("dgx-h100-ib", "llama-3.1-70b", tensor=3), drawn(1, 0.0, (10, 10), (2, 2)))


def test_a_model_that_does_not_fit_is_told_by_how_much_and_what_helps() -> None:
    with pytest.raises(NoRoom, match=r"GB too many; it would fit with --tensor 4 or --tensor 8"):
        run_scenario(Scenario("dgx-h100-ib", "llama-3.1-70b", tensor=2), drawn(1, 0.0, (10, 10), (2, 2)))


def test_a_trace_with_holes_is_read_as_far_as_it_goes_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    good = [{"timestamp": 1000 * at, "input_length": 600, "output_length": 5, "hash_ids": [at]} for at in (0, 3, 2)]
    path.write_text("\n".join([*map(json.dumps, good), "{broken", json.dumps({"timestamp": 5})]))
    requests = read_requests(path)
    assert requests.arrives_s.tolist() == [0.0, 2.0, 3.0]
    assert requests.holes[0].startswith("2 of 5 lines have no time or no lengths")
    assert "times go back" in requests.holes[1]
    path.write_text("{}\n")
    with pytest.raises(BadInput, match="no request with a time"):
        read_requests(path)


def test_a_trace_twice_as_long_has_blocks_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": 1000 * at, "input_length": 600, "output_length": 5, "hash_ids": [9]})
            for at in range(2)
        )
    )
    twice = read_requests(path).repeated(2)
    assert twice.ids.tolist() == [0, 0, 1, 1]
    assert twice.arrives_s.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_difference_within_the_error_of_its_kind_is_not_shown() -> None:
    error = error_of("tpot_s")
    assert difference("tpot_s", 1.0, 1 + 0.9 * error) == NO_DIFFERENCE
    assert difference("tpot_s", 1 + 0.9 * error, 1.0) == NO_DIFFERENCE
    assert difference("tpot_s", 1.0, 2.0) == "2.00x"


def test_a_sweep_goes_on_where_it_was_and_tells_what_cannot_be(tmp_path: Path) -> None:
    requests = drawn(20, 5.0, (100, 200), (5, 10))
    scenarios = grid(Scenario("dgx-h100-ib", "llama-3.1-70b", replicas=1), {"tensor": [1, 8], "dtype": ["fp8"]})
    done = tmp_path / "done.jsonl"
    first = list(sweep(scenarios, requests, done=done, jobs=2))
    assert "does not fit" in first[0].problem
    assert first[1].figures["served"] == 20
    lines = done.read_text().splitlines()
    changed = json.loads(lines[1]) | {"tpot_s": 42.0}
    done.write_text("\n".join([lines[0], json.dumps(changed)]) + "\n")
    again = list(sweep(scenarios, requests, done=done))
    assert again[1].figures["tpot_s"] == 42.0  # taken, not computed
    assert len(done.read_text().splitlines()) == 2
    with done.open("a") as file:
        file.write(lines[1][:50])  # its process was killed while it wrote
    assert [each.figures for each in sweep(scenarios, requests, done=done)] == [each.figures for each in again]
    assert len(done.read_text().splitlines()) == 2
    others = replace(requests, input_tokens=requests.input_tokens[::-1].copy())  # other requests, equal sums
    assert list(sweep(scenarios, others, done=done))[1].figures["tpot_s"] != 42.0
    for other in ("my notes", "my notes\n", '{"key": "x"}\n', "[" * 100_000 + "\n", lines[1] + "\n[]\n"):
        done.write_text(other)
        with pytest.raises(BadInput, match="no outcome of a sweep"):
            list(sweep(scenarios, requests, done=done))
        assert done.read_text() == other
    with pytest.raises(BadInput, match="no field 'tensors'"):
        grid(scenarios[0], {"tensors": [1]})


def test_lines_of_a_trace_that_no_engine_could_serve_are_left_out_and_said(tmp_path: Path) -> None:
    lines = [
        '{"timestamp": 3, "input_length": 100, "output_length": 5}',
        '{"timestamp": NaN, "input_length": 100, "output_length": 5}',
        '{"timestamp": 5, "input_length": 1e99, "output_length": 5}',
        '{"timestamp": 5, "input_length": Infinity, "output_length": 5}',
        '{"timestamp": 5, "input_length": 5, "output_length": -1}',
        "[]",
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    found = read_requests(tmp_path / "trace.jsonl")
    assert len(found) == 1
    assert found.holes[0].startswith("5 of 6 lines")


def test_dates_with_and_without_a_zone_are_of_one_clock(tmp_path: Path) -> None:
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += ["2024-05-10 00:00:00.0099300,4,4", "2024-05-10 00:00:03+00:00,4,4"]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    assert read_requests(tmp_path / "trace.csv").span_s == pytest.approx(2.99007)


def test_a_table_of_clients_draws_as_many_requests_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    rows = [f"{client},{start},{rate},{cv}" for client, rate, cv in ((0, 0.5, 1), (1, 1.5, 4), (2, 0, 1))
            for start in range(0, 6000, 600)]  # fmt: skip
    path.write_text("\n".join(["client,t_s,requests_per_s,cv", *rows]))
    assert is_clients(path)
    found = drawn_of_clients(path, (10, 20), (3, 4))
    assert len(found) == pytest.approx(2 * 6000, rel=0.1)
    assert found.span_s == pytest.approx(6000, rel=0.05)
    assert (found.arrives_s[1:] >= found.arrives_s[:-1]).all()
    path.write_text("client,t_s,requests_per_s,cv\n0,0,-1,1\n")
    with pytest.raises(BadInput, match="below 0"):
        drawn_of_clients(path, (10, 20), (3, 4))
    with pytest.raises(BadInput, match="--lengths"):
        read_requests(path)


def test_a_dtype_that_an_accelerator_does_not_compute_in_is_said() -> None:
    def said(fabric: str, model: str, dtype: str) -> str:
        return " ".join(assumed_of(Scenario(fabric, model, dtype=dtype)))

    assert "a100_sxm keeps weights in fp8" in said("dgx-a100-ib", "llama-3.1-8b", "fp8")
    assert "keeps weights" not in said("dgx-h100-ib", "llama-3.1-8b", "fp8_block")
    assert "keeps weights in nvfp4" in said("dgx-h100-ib", "deepseek-v3", "nvfp4")
    assert "keeps weights" not in said("dgx-h100-ib", "gpt-oss-120b", "nvfp4")  # mxfp4 and bfloat16, whatever is asked


def test_every_model_on_every_accelerator_has_times_that_only_grow() -> None:
    law, tokens = shipped(), np.array([1.0, 64, 4096, 65536])
    for name, device in itertools.product(model_names(), accelerators()):
        model = find_model(name)
        for dtype in ("bfloat16", "float16", "fp8", "fp8_block", "nvfp4"):
            work = work_of(model, accelerator(device), Plan(1, 8, dtype))
            for times in (law.dense(work, tokens), law.decode(work, tokens, 1e3), law.prefill(work, tokens, 0.0)):
                assert np.isfinite(times).all()
                assert (np.diff([0.0, *times]) > 0).all()


def test_names_of_one_rate_have_one_time_and_a_dtype_without_a_rate_computes_as_bfloat16() -> None:
    for name in ("llama-3.1-8b", "mixtral-8x7b"):
        model = find_model(name)

        def computed(device: str, dtype: str, of: ServedModel = model) -> tuple[float, float]:
            work = work_of(of, accelerator(device), Plan(dtype=dtype))
            return work.linear_token_s, work.expert_token_s

        assert computed("h100", "fp8") == computed("h100", "fp8_block")
        assert computed("h100", "float16") == computed("h100", "bfloat16")
        assert computed("a100", "fp8") == computed("a100", "nvfp4") == computed("a100", "bfloat16")


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_file_that_is_no_text_is_no_trace(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trace.{suffix}"
    path.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(BadInput, match=r"cannot be read as text|no request with a time"):
        read_requests(path)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_rates_that_are_no_numbers_are_refused(wrong: float) -> None:
    with pytest.raises(BadInput, match="a second"):
        drawn(5, wrong, (9, 9), (2, 2))
    with pytest.raises(BadInput, match="burstiness"):
        drawn(5, 1.0, (9, 9), (2, 2), burstiness=wrong)
    with pytest.raises(BadInput, match="times as fast"):
        drawn(5, 1.0, (9, 9), (2, 2)).faster(wrong)
