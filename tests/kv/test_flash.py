"""Pools larger than memory: blocks go to flash and come back as they were, whoever is killed, and after a restart."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import KVPool, Layout, Space, _core
from openshelf.errors import BadInput
from openshelf.kv import describe
from tests.conftest import alive
from tests.kv.flash_worker import (
    BLOCK,
    SHARED,
    UNITS,
    check_all,
    check_hit,
    churn,
    flash_of,
    look,
    put,
    put_some,
    tokens_of,
)
from tests.kv.prompts import assert_sound
from tests.processes import fork_server, in_fresh_process

DRAM = "32MiB"
PROMPTS = 128  # of 1 MiB each: four times dram
DEMOTE = 4  # native Want


@pytest.fixture
def large(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A space of 256 MiB, 32 MiB of it in memory."""
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    with Space.create("flash", DRAM, flash=flash_of(tmp_path)) as space:
        yield space


def tiers(space: Space) -> dict[str, Any]:
    counts: dict[str, Any] = space.describe()["tiers"]
    return counts


def demote(space: Space, address: int, nbytes: int) -> None:
    native: Any = space._native
    native.tiers.wait(native.tiers.ask(DEMOTE, address, nbytes, 0), 30.0)


def keeper_of(space: Space) -> int:
    """The process number of the keeper, once there is one."""
    deadline = time.monotonic() + 30
    while not (pid := int(tiers(space)["keeper"])) or not alive(pid):
        assert time.monotonic() < deadline, "no other keeper came"
        time.sleep(0.002)
    return pid


def end(pid: int) -> None:
    """By SIGKILL, and waits until it is gone."""
    assert pid > 1
    os.kill(pid, signal.SIGKILL)
    while alive(pid):
        time.sleep(0.001)


@pytest.mark.parametrize("faults", ["on", "off"])
@pytest.mark.parametrize("layout", [UNITS, SHARED], ids=["whole units", "shared units"])
def test_a_pool_of_four_times_the_memory_has_every_byte(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, faults: str
) -> None:
    monkeypatch.setenv("OPENSHELF_FAULTS", faults)
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    with Space.create("flash", DRAM, flash=flash_of(tmp_path)) as space, KVPool(space, layout, BLOCK) as pool:
        for prompt in range(PROMPTS):
            stored = put(pool, prompt)
            assert stored.stored == stored.blocks
        assert pool.stats()["flash_blocks"] * layout.block_bytes(BLOCK) > 90 << 20
        check_all(pool, range(PROMPTS))
        assert tiers(space)["dram_bytes"] <= 33 << 20
        assert pool.stats()["evicted_blocks"] == 0
        assert_sound(pool)


def test_when_flash_is_full_the_pool_evicts(large: Space) -> None:
    with KVPool(large, UNITS, BLOCK, capacity="64MiB") as pool:
        for prompt in range(PROMPTS):
            assert not put(pool, prompt).declined
        assert pool.stats()["evicted_blocks"] > 200
        for prompt in range(PROMPTS):
            look(pool, prompt)
        assert_sound(pool)


def test_blocks_that_are_overwritten_are_not_read(large: Space) -> None:
    with KVPool(large, UNITS, BLOCK, capacity="100MiB") as pool:
        for prompt in range(96):
            put(pool, prompt)
        before = tiers(large)["read_bytes"]
        for prompt in range(96, 160):  # into slots of blocks that are evicted
            put(pool, prompt)
        assert tiers(large)["read_bytes"] - before < 4 << 20  # of 64 MiB
        check_all(pool, range(150, 160))


def test_a_match_asks_for_what_is_on_flash_and_for_nothing_else(large: Space) -> None:
    with KVPool(large, UNITS, BLOCK) as pool:
        for prompt in range(64):
            put(pool, prompt)
        with pool.match(tokens_of(0)) as hit:  # long gone from memory
            deadline = time.monotonic() + 10
            units = [_core.address_of(hit.block(at)) for at in range(hit.blocks)]
            native: Any = large._native
            while any(native.tiers.tiers(at, 256 << 10)[1] for at in units):
                assert time.monotonic() < deadline, "nobody asked for the blocks"
                time.sleep(0.005)
            faults = tiers(large)["faults"] - tiers(large)["faults_in_dram"]
            check_hit(hit, 0)
            assert tiers(large)["faults"] - tiers(large)["faults_in_dram"] == faults  # no touch waited
        asked = tiers(large)["asked_units"]
        assert asked >= 4
        pool.match(tokens_of(0)).release()
        assert pool.present(tokens_of(1)) == len(tokens_of(1))
        assert tiers(large)["asked_units"] == asked


def test_views_of_a_hit_outlast_what_happens_to_the_memory(large: Space) -> None:
    with KVPool(large, UNITS, BLOCK) as pool:
        put(pool, 7)
        with pool.match(tokens_of(7)) as hit:
            views = [hit.block(at) for at in range(hit.blocks)]
            for _ in range(3):
                demote(large, _core.address_of(views[0]), 1 << 20)
                assert pool.stats()["flash_blocks"] == hit.blocks
                check_hit(hit, 7)
                demote(large, _core.address_of(views[0]), 1 << 20)
                check_hit(hit, 7, copy=True)


def test_what_a_pool_knows_never_leaves_memory(large: Space) -> None:
    with KVPool(large, SHARED, BLOCK) as pool:
        for prompt in range(40):
            put(pool, prompt)
        native: Any = large._native
        ((address, nbytes),) = [
            (address, nbytes) for name, nbytes, address, *_ in native.list("") if name == "kv"
        ]  # fmt: skip
        demote(large, address, nbytes)
        slots = pool.stats()["capacity_blocks"]
        known = _core.KVCore.metadata_bytes(SHARED.block_bytes(BLOCK), BLOCK, slots)
        assert native.tiers.tiers(address, known)[1] == 0
        dram, flash, _ = native.tiers.tiers(address + known + (64 << 10), 30 << 20)
        assert flash > 400
        assert dram == 0
        check_all(pool, range(40))


def test_other_processes_read_what_one_put(large: Space, home: Path) -> None:
    assert in_fresh_process(put_some, str(home), 0, 64) == 256
    with KVPool(large, UNITS, BLOCK) as pool:
        assert in_fresh_process(put_some, str(home), 32, 64) == 128
        check_all(pool, range(96))
        facts = describe(large)
        assert facts["dram_blocks"] + facts["flash_blocks"] == facts["blocks"] == 384
        assert facts["flash_blocks"] > 200


def test_without_faults_a_match_is_as_long_as_memory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSHELF_FAULTS", "off")
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    with Space.create("flash", DRAM, flash=flash_of(tmp_path)) as space, KVPool(space, UNITS, BLOCK) as pool:
        tokens = np.concatenate([tokens_of(prompt) for prompt in range(64)])
        cache = np.random.default_rng(1).integers(0, 1 << 30, UNITS.shape(len(tokens)), np.int32)
        assert pool.put(tokens, cache).declined == 0
        with pool.match(tokens) as hit:
            assert 64 <= hit.blocks < 256
            assert np.array_equal(hit.read(), cache[:, :, : hit.length])
            with pool.match(tokens_of(0)) as other:  # the same blocks: no more memory
                assert other.blocks == 4
            assert put(pool, 99).declined <= 4  # declined, if all of memory is held; never an error
        assert tiers(space)["pinned_bytes"] < 2 << 20
        assert put(pool, 98).declined == 0
        check_all(pool, [98])
        pool.put("value", bytes(range(256)) * 4096)
        assert pool.get("value") == bytes(range(256)) * 4096


def test_keepers_and_workers_are_killed(large: Space, home: Path) -> None:
    chance, verdict = random.Random(3), home / "verdict"
    context = fork_server()

    def start() -> Any:
        seed = chance.getrandbits(32)
        worker = context.Process(target=churn, args=(str(home), seed, str(verdict), 80), daemon=True)
        worker.start()
        return worker

    with KVPool(large, UNITS, BLOCK, capacity="64MiB") as pool:
        put(pool, 1)
        held = pool.match(tokens_of(1))
        workers = [start() for _ in range(3)]
        try:
            time.sleep(0.5)
            for number in range(20):
                time.sleep(chance.random() * 0.15)
                if number % 3 == 0:
                    end(keeper_of(large))
                    check_hit(held, 1)  # touches wait for the next one
                    continue
                at = chance.randrange(3)
                workers[at].kill()
                workers[at].join(30)
                assert workers[at].exitcode == -signal.SIGKILL, verdict.read_text()
                workers[at] = start()
        finally:
            for worker in workers:
                worker.kill()
                worker.join(30)
        assert not verdict.exists(), verdict.read_text()
        check_hit(held, 1)
        held.release()
        for prompt in range(80):
            look(pool, prompt)
        assert pool.stats()["stored_blocks"] > 100
        assert_sound(pool)


def restarted(home: Path, tmp_path: Path, keeper: int) -> Space:
    """The space again, after everything of it that was in memory is gone."""
    end(keeper)
    shutil.rmtree(home / "flash")
    return Space.create("flash", DRAM, flash=flash_of(tmp_path, "400MiB"), durable=True, exist_ok=True)


def fill_and_die(home: str, flash: str) -> None:
    """Puts some, flushes, puts more, and leaves a block half filled; prints the number of the keeper."""
    os.environ["OPENSHELF_DIR"] = home
    space = Space.create("flash", DRAM, flash=flash, durable=True)
    pool = KVPool(space, UNITS, BLOCK, capacity="128MiB")
    for prompt in range(64):
        put(pool, prompt, ttl=0.5 if prompt == 63 else None)
    draft = pool.draft(tokens_of(200))
    pool.match(tokens_of(5)).release()
    pool.pin(tokens_of(5))
    pool.flush()
    for prompt in range(64, 140):  # over what was flushed, partly
        put(pool, prompt)
    print(keeper_of(space), flush=True)
    assert draft.stop
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("faults", ["on", "off"])
def test_what_was_flushed_is_there_after_a_restart(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: str
) -> None:
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    flash = flash_of(tmp_path, "400MiB")
    code = f"from tests.kv.test_flash import fill_and_die; fill_and_die({str(home)!r}, {flash!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    monkeypatch.setenv("OPENSHELF_FAULTS", faults)
    with restarted(home, tmp_path, int(done.stdout)) as space:
        pool = KVPool(space, UNITS, BLOCK)
        check_all(pool, range(63))
        deadline = time.monotonic() + 10
        while look(pool, 63):  # until its time is over
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for prompt in range(64, 140):
            look(pool, prompt)  # missing, or right
        stats = pool.stats()
        assert stats["stored_blocks"] >= 256
        assert stats["queries"] > 0
        assert_sound(pool)  # the draft of the old life is reclaimed
        for prompt in range(140, 200):
            assert not put(pool, prompt).declined
        assert look(pool, 5) == 4  # pinned
        keeper = keeper_of(space)
        pool.close()  # flushes
    with restarted(home, tmp_path, keeper) as space, KVPool(space, UNITS, BLOCK) as pool:
        check_all(pool, range(190, 200))
        assert_sound(pool)


def test_flush_is_of_durable_spaces(large: Space, tmp_path: Path) -> None:
    with KVPool(large, UNITS, BLOCK, capacity="8MiB") as pool:
        put(pool, 1)
        with pytest.raises(BadInput, match="not durable"):
            pool.flush()
