"""Engines answer as they do without a pool, whoever computed what they begin with and whatever became of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")

from openshelf import KVPool, Layout, Space
from tests.adapters.vllm.engines import (
    STARTING,
    ask,
    ask_on_and_on,
    assert_same,
    begin,
    drop_own_cache,
    has_lost,
    lose_next_load,
    one,
)
from tests.adapters.vllm.models import BLOCK, HEAD_DIM, HEADS, LAYERS, prompt, save_adapter, save_model
from tests.kv.prompts import assert_sound
from tests.processes import Died, Peer

OPTIONS = {"space": "shelf", "capacity": "4MiB"}  # 80 blocks


@dataclass
class Shelf:
    """Two engines with one pool, and one without."""

    folder: Path
    model: str
    pool: KVPool
    plain: Peer
    first: Peer
    second: Peer


def started(
    model: str, options: dict[str, str] | None, blocks: int = 640, policy: str = "recompute", **more: Any
) -> Peer:
    """`blocks` of KV cache of its own."""
    engine = Peer()
    engine.start(begin, model, options, blocks, policy, more)
    engine.finish(STARTING)
    return engine


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    home = Path(tempfile.mkdtemp(prefix="openshelf-test-", dir="/dev/shm"))
    home.chmod(0o700)
    settings = {
        "OPENSHELF_DIR": str(home),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an engine in one process, which starts sooner
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        model = save_model(home / "model")
        with Space.create("shelf", "64MiB") as space:
            plain, first, second = (started(model, options) for options in (None, OPTIONS, OPTIONS))
            pool = KVPool(space, Layout("looking on", LAYERS, HEADS, HEAD_DIM, "float32"), BLOCK)
            made = Shelf(home, model, pool, plain, first, second)
            yield made
            for engine in (made.plain, made.first, made.second):
                engine.kill()  # vLLM takes its time to end
            assert_sound(pool)
    shutil.rmtree(home)


def test_cold_full_and_partial_hits_answer_as_without_a_pool(shelf: Shelf) -> None:
    tokens, other = prompt(500, 1), prompt(300, 1) + prompt(200, 2)
    expected = one(shelf.plain, tokens)
    cold = one(shelf.first, tokens)
    full = one(shelf.second, tokens)  # another process
    assert (cold.cached, full.cached) == (0, 480)
    assert_same(cold, expected)
    assert_same(full, expected)
    part = one(shelf.second, other)
    assert part.cached == 288
    assert_same(part, one(shelf.plain, other))


def test_what_an_engine_has_itself_is_continued_from_the_pool(shelf: Shelf) -> None:
    start, tokens = prompt(200, 10), prompt(200, 10) + prompt(300, 11)
    one(shelf.second, start)
    one(shelf.first, tokens)
    both = one(shelf.second, tokens)
    assert both.cached == 480
    assert_same(both, one(shelf.plain, tokens))


def test_a_prompt_of_whole_blocks_leaves_one_to_compute(shelf: Shelf) -> None:
    tokens = prompt(8 * BLOCK, 20)
    one(shelf.first, tokens)
    answer = one(shelf.second, tokens)
    assert answer.cached == 7 * BLOCK
    assert_same(answer, one(shelf.plain, tokens))


def test_what_was_generated_begins_the_next_turn(shelf: Shelf) -> None:
    tokens = prompt(100, 30)
    turn = one(shelf.first, tokens, None, "", 60)
    again = [*tokens, *turn.tokens, *prompt(40, 31)]
    answer = one(shelf.second, again)
    assert answer.cached == 128  # of 159 tokens whose keys and values were computed
    assert_same(answer, one(shelf.plain, again))


def test_prompts_of_one_batch_share_what_is_loaded(shelf: Shelf) -> None:
    prompts = [prompt(256, 40) + prompt(50 + at, 41 + at) for at in range(4)]
    expected = shelf.plain.call(ask, prompts)
    for engine in (shelf.first, shelf.second):
        for got, wanted in zip(engine.call(ask, prompts), expected, strict=True):
            assert_same(got, wanted)


def test_adapters_do_not_mix(shelf: Shelf) -> None:
    tokens = prompt(200, 50)
    ours, theirs = (save_adapter(shelf.folder / f"adapter{seed}", seed) for seed in (1, 2))
    base, mine = one(shelf.plain, tokens), one(shelf.plain, tokens, ("mine", ours))
    assert base.tokens != mine.tokens, "this adapter changes nothing"
    for adapter, expected in ((None, base), (("mine", ours), mine)):
        cold = one(shelf.first, tokens, adapter)
        full = one(shelf.second, tokens, adapter)
        assert (cold.cached, full.cached) == (0, 192)
        assert_same(cold, expected)
        assert_same(full, expected)
    copy = str(shelf.folder / "copy")
    shutil.copytree(ours, copy)
    named_alike, renamed = one(shelf.first, tokens, ("other", theirs)), one(shelf.second, tokens, ("new", copy))
    assert (named_alike.cached, renamed.cached) == (0, 192)  # the weights count, not the name
    assert_same(named_alike, one(shelf.plain, tokens, ("other", theirs)))
    assert_same(renamed, mine)


def test_only_the_same_cache_salt_finds_a_prompt(shelf: Shelf) -> None:
    tokens = prompt(100, 60)
    assert one(shelf.first, tokens, None, "acme").cached == 0
    assert [one(shelf.second, tokens, None, salt).cached for salt in ("", "emca", "acme")] == [0, 0, 96]


def test_evicted_prompts_are_computed_again(shelf: Shelf) -> None:
    prompts = [prompt(500, 70 + at) for at in range(8)]  # more than the pool has room for
    expected = [one(shelf.plain, tokens) for tokens in prompts]
    before = shelf.pool.stats()["evicted_blocks"]
    for _ in range(2):
        for engine in (shelf.first, shelf.second):
            for tokens, wanted in zip(prompts, expected, strict=True):
                assert_same(one(engine, tokens), wanted)
            engine.call(drop_own_cache)
    assert shelf.pool.stats()["evicted_blocks"] > before
    shelf.pool.clear()
    gone = one(shelf.first, prompts[0])
    assert gone.cached == 0
    assert_same(gone, expected[0])


def test_blocks_that_are_gone_are_computed_again_and_stored_right(shelf: Shelf) -> None:
    start, tokens = prompt(300, 75), prompt(300, 75) + prompt(200, 76)
    one(shelf.first, start)
    expected = one(shelf.plain, tokens)
    shelf.second.call(lose_next_load)
    assert_same(one(shelf.second, tokens), expected)
    assert shelf.second.call(has_lost)
    shelf.first.call(drop_own_cache)
    full = one(shelf.first, tokens)
    assert full.cached == 480
    assert_same(full, expected)


HOW = ("gone", "part", "unreadable")


def family(seed: int) -> list[list[int]]:
    """Prompts that share most of their tokens, more than an engine computes in a step."""
    return [prompt(640, seed) + prompt(50 + at, seed + 1 + at) for at in range(3)]


def test_a_failed_load_never_changes_answers_though_others_share_its_blocks(shelf: Shelf) -> None:
    """Of prompts that share what could not be loaded, only the first computes it again, a piece in each step: the
    others must not go on before it is there."""
    engine = started(shelf.model, OPTIONS, max_num_batched_tokens=1024, long_prefill_token_threshold=64)
    for seed, how in enumerate(HOW, 1):
        prompts = family(1000 * seed)
        expected = shelf.plain.call(ask, prompts)
        shelf.first.call(ask, prompts[:1])
        engine.call(lose_next_load, how)
        for _ in range(2):  # from the pool, and from what the engine has kept itself
            for got, wanted in zip(engine.call(ask, prompts), expected, strict=True):
                assert_same(got, wanted)
        assert engine.call(has_lost), how
        shelf.first.call(drop_own_cache)
        for got, wanted in zip(shelf.first.call(ask, prompts), expected, strict=True):  # from what it stored
            assert_same(got, wanted)
    engine.kill()


def test_a_failed_load_fails_its_request_alone_if_that_is_wanted(shelf: Shelf) -> None:
    engine = started(shelf.model, OPTIONS, policy="fail")
    for seed, how in enumerate(HOW, 1):
        prompts = family(1000 * seed + 500)
        expected = shelf.plain.call(ask, prompts)
        shelf.first.call(ask, prompts[:1])
        engine.call(lose_next_load, how)
        answers = engine.call(ask, prompts)
        assert [bool(got.tokens) for got in answers] == [False, True, True]
        for got, wanted in zip(answers[1:], expected[1:], strict=True):
            assert_same(got, wanted)
        for got, wanted in zip(engine.call(ask, prompts), expected, strict=True):
            assert_same(got, wanted)
    engine.kill()


def test_preempted_requests_answer_as_without_a_pool(shelf: Shelf) -> None:
    prompts = [prompt(200, 77 + at) for at in range(4)]
    engine = started(shelf.model, OPTIONS, blocks=36)  # of 44 that are needed at once
    expected, answers = (peer.call(ask, prompts, None, "", 140) for peer in (shelf.plain, engine))
    engine.kill()
    for got, wanted in zip(answers, expected, strict=True):
        assert_same(got, wanted)


def test_other_models_do_not_mix(shelf: Shelf) -> None:
    tokens = prompt(100, 80)
    one(shelf.first, tokens)
    other, qwen = save_model(shelf.folder / "other", seed=2), save_model(shelf.folder / "qwen", "qwen3")
    for model in (other, qwen):
        engine = started(model, OPTIONS)
        cold = one(engine, tokens)
        engine.call(drop_own_cache)
        full = one(engine, tokens)
        engine.kill()
        assert (cold.cached, full.cached) == (0, 96)
        assert_same(full, cold)


def test_a_restarted_engine_goes_on_with_the_pool(shelf: Shelf) -> None:
    tokens = prompt(500, 90)
    shelf.pool.clear()
    expected = one(shelf.first, tokens)
    victim = shelf.second
    victim.start(ask_on_and_on, 1000)
    time.sleep(2)
    victim.kill()
    with pytest.raises(Died):
        victim.finish()
    shelf.second = started(shelf.model, OPTIONS)
    again = one(shelf.second, tokens)
    assert again.cached == 480
    assert_same(again, expected)
    assert_same(one(shelf.plain, tokens), expected)
    assert_sound(shelf.pool)


def test_the_environment_has_no_torchvision() -> None:
    """vLLM does without; the build that pip finds does not go with this torch."""
    for name in ("torchvision", "torchaudio", "torchcodec"):
        with pytest.raises(ImportError):
            __import__(name)
