"""An engine by its own rules, with step times that one can add up."""

from __future__ import annotations

import numpy as np
import pytest

from openshelf import _core
from openshelf.errors import NoRoom
from openshelf.twin.serve import Engine, Requests, drawn, made_of, serve


def times(step: float = 1.0, token: float = 0.0, context: float = 0.0) -> _core.StepTimes:
    """Every step takes `step`, and `token` for each prompt token, and `context` for each token that decodes look at."""
    made = _core.StepTimes()
    made.set("dense", [[1.0, 2.0]], np.array([step, step]))
    made.set("sampling", [[0.0, 1.0]], np.zeros(2))
    made.set("prefill", [[0.0, 1.0], [0.0, 1.0]], np.array([0.0, 0.0, token, token]))
    made.set("decode", [[0.0, 1.0], [0.0, 1.0]], np.array([0.0, 0.0, 0.0, context]))
    return made


def test_a_request_alone_takes_its_chunks_and_a_step_for_each_token() -> None:
    served = serve(made_of([0.0], [100], [5]), Engine(100, most_tokens=40, under_way=1), times())
    assert served.first_s[0] == pytest.approx(3.0)  # 40, 40, 20
    assert served.last_s[0] == pytest.approx(7.0)
    assert served.replicas[0]["tokens"] == 104


def test_times_of_prompts_and_context_are_added_up() -> None:
    served = serve(made_of([0.0], [10], [3]), Engine(100, under_way=1), times(1.0, 0.1, 0.01))
    assert served.first_s[0] == pytest.approx(2.0)
    assert served.last_s[0] == pytest.approx(4.0 + 0.11 + 0.12)


def test_a_step_that_is_under_way_makes_what_arrives_wait_for_the_one_after_the_next() -> None:
    requests = made_of([0.0, 0.5], [10, 10], [20, 2])
    alone = serve(requests, Engine(100, under_way=1), times())
    two = serve(requests, Engine(100, under_way=2), times())
    assert alone.first_s[1] == pytest.approx(2.0)
    assert two.first_s[1] == pytest.approx(3.0)
    assert two.last_s[0] == pytest.approx(alone.last_s[0])


def test_sequences_of_a_step_are_limited() -> None:
    served = serve(made_of([0.0] * 4, [10] * 4, [4] * 4), Engine(100, most_sequences=2, under_way=1), times())
    assert sorted(served.first_s) == pytest.approx([1.0, 1.0, 5.0, 5.0])


def test_who_finds_no_block_throws_out_the_last_one_which_still_ends() -> None:
    served = serve(made_of([0.0, 0.0], [30, 30], [40, 40]), Engine(6, 16, under_way=1), times())
    assert served.preempted.tolist() == [0, 1]
    assert served.done.all()
    assert served.last_s[0] == pytest.approx(40.0)
    assert served.last_s[1] > 60.0


def test_blocks_that_are_left_are_not_computed_again() -> None:
    requests = made_of([0.0, 0.0], [30, 30], [40, 40])
    without = serve(requests, Engine(6, 16, under_way=1), times())
    kept = serve(requests, Engine(6, 16, under_way=1, prefixes=True), times())
    assert kept.replicas[0]["tokens"] <= without.replicas[0]["tokens"]
    assert kept.done.all()


def test_a_request_that_never_fits_is_refused_with_what_it_needs() -> None:
    with pytest.raises(NoRoom, match="needs 9 KV blocks; a replica has 8"):
        serve(made_of([0.0], [100], [40]), Engine(8, 16), times())


def test_cuda_graphs_pad_steps_of_decodes() -> None:
    made = _core.StepTimes()
    made.set("dense", [[0.0, 100.0]], np.array([0.0, 100.0]))
    made.set("sampling", [[0.0, 1.0]], np.zeros(2))
    for name in ("prefill", "decode"):
        made.set(name, [[0.0, 1.0], [0.0, 1.0]], np.zeros(4))
    made.graphs, made.eager_s = [4, 8], 0.5
    assert made.seconds([], 5, 0.0) == pytest.approx(8.0)
    assert made.seconds([], 9, 0.0) == pytest.approx(9.5)
    assert made.seconds([(3, 0)], 1, 0.0) == pytest.approx(4.5)


def test_decodes_go_on_elsewhere_after_their_kv_was_handed_over() -> None:
    engine = Engine(100, under_way=1)
    served = serve(
        made_of([0.0], [10], [3]), engine, times(), decode_replicas=1, hand_over_s=0.5, hand_over_s_token=0.01
    )
    assert served.first_s[0] == pytest.approx(1.0)
    assert served.last_s[0] == pytest.approx(1.0 + 0.6 + 2.0)
    assert [each["steps"] for each in served.replicas] == [1, 2]


def test_clients_of_a_closed_loop_ask_again_after_their_answer() -> None:
    served = serve(made_of([0.0] * 6, [10] * 6, [4] * 6), Engine(100, under_way=1), times(), clients=2, think_s=1.0)
    assert sorted(served.arrives_s) == pytest.approx([0.0, 0.0, 5.0, 5.0, 10.0, 10.0])


def test_a_request_enters_after_the_time_outside_of_the_accelerator() -> None:
    served = serve(made_of([0.0], [10], [1]), Engine(100, under_way=1), times(), entry_s=0.25)
    assert served.first_s[0] == pytest.approx(1.25)


def test_least_load_spreads_requests_over_replicas() -> None:
    served = serve(made_of([0.0] * 8, [10] * 8, [4] * 8), Engine(100, under_way=1), times(), replicas=4)
    assert [each["tokens"] for each in served.replicas] == [26] * 4


def test_goodput_counts_requests_that_keep_both_limits() -> None:
    served = serve(made_of([0.0, 0.0], [10, 10], [5, 5]), Engine(100, most_sequences=1, under_way=1), times())
    assert served.goodput(2.0, 1.0) == pytest.approx(1 / 10)
    assert served.goodput(6.0, 1.0) == pytest.approx(2 / 10)
    assert served.goodput(0.5, 1.0) == 0.0


def shared() -> Requests:
    """Two prompts with the same two blocks of 512, far apart."""
    arrives = np.array([0.0, 100.0])
    lengths = np.array([1100, 1100], np.uint32)
    return Requests(
        arrives, lengths, np.array([2, 2], np.uint32), np.array([0, 2, 4], np.uint64), np.array([7, 8, 7, 8], np.uint32)
    )


def test_blocks_of_prompts_are_found_in_the_engine_itself() -> None:
    served = serve(shared(), Engine(1000, under_way=1, prefixes=True), times(1.0, 0.01))
    assert served.found_tokens.tolist() == [0, 1024]
    assert served.replicas[0]["tokens"] == 1100 + 76 + 2


def test_replicas_that_take_turns_find_nothing_but_routing_by_cache_does() -> None:
    apart = serve(shared(), Engine(1000, prefixes=True), times(), replicas=2, routing="in_turn")
    found = serve(shared(), Engine(1000, prefixes=True), times(), replicas=2, routing="by_cache")
    assert apart.found_tokens.sum() == 0
    assert found.found_tokens.sum() == 1024


def test_the_same_seed_draws_the_same_requests() -> None:
    one, same, other = (drawn(100, 2.0, (10, 20), (1, 5), seed=seed) for seed in (1, 1, 2))
    assert (one.arrives_s == same.arrives_s).all()
    assert (one.arrives_s != other.arrives_s).any()
    assert one.span_s == pytest.approx(50, rel=0.3)
    assert drawn(10, 2.0, (1, 1), (1, 1), burstiness=0).arrives_s == pytest.approx(np.arange(10) / 2)
