"""What other processes do in tests. Those that are killed do all a pool offers, and check every byte they read."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np

from openshelf import KVPool, Space
from openshelf.errors import NotPermitted
from tests.kv.prompts import BLOCK, LAYOUT, cache_of, check_hit, look, put, tokens_of
from tests.processes import State

SYSTEM = [9, 9, 9]  # a pinned prompt that everybody continues
DEPTH, WIDTH = 5, 3
OK = 1


def path_of(number: int) -> list[int]:
    """All paths of some depth below the system prompt, by number."""
    path = list(SYSTEM)
    for _ in range(DEPTH):
        path.append(1 + number % WIDTH)
        number //= WIDTH
    return path


PATHS = WIDTH**DEPTH


def churn(home: str, seed: int, verdict: str) -> None:
    """For ever: match, put, draft and evict in a pool that is too small. Ends by itself only if it reads wrongly."""
    os.environ["OPENSHELF_DIR"] = home
    chance = random.Random(seed)
    try:
        with Space.open("crash") as space, KVPool(space, LAYOUT, BLOCK, verify=True) as pool:
            while True:
                _one_deed(pool, chance)
    except BaseException as error:
        with open(verdict, "a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        raise


def _one_deed(pool: KVPool, chance: random.Random) -> None:
    path = path_of(chance.randrange(PATHS))[: chance.randint(len(SYSTEM), len(SYSTEM) + DEPTH)]
    deed = chance.random()
    if deed < 0.4:
        with pool.match(tokens_of(path)) as hit:
            assert check_hit(hit, path) >= len(SYSTEM), "the pinned prompt is lost"
            if chance.random() < 0.1:
                time.sleep(0.002)
                check_hit(hit, path)
            assert np.array_equal(hit.read(), cache_of(path)[:, :, : hit.length])
    elif deed < 0.7:
        put(pool, path, ttl=None if chance.random() < 0.8 else 0.001)
    elif deed < 0.8:
        with pool.draft(tokens_of(path)) as draft:
            for layer in range(2):
                draft.put_layer(layer, cache_of(path)[layer])
    elif deed < 0.9:
        pool.evict(tokens_of(path), keep=len(SYSTEM) * BLOCK)
    else:
        key = f"value {chance.randrange(5)}"
        value = key.encode() * 100
        got = pool.get(key)
        assert got is None or got == value, "a wrong value"
        pool.put(key, value)


def store(home: str, seed: int, verdict: str) -> None:
    """For ever: put prompts into a pool with room for all, and note in shared memory which puts have returned."""
    os.environ["OPENSHELF_DIR"] = home
    chance = random.Random(seed)
    try:
        with Space.open("crash") as space, KVPool(space, LAYOUT, BLOCK, verify=True) as pool:
            noted: Any = space["noted"].numpy()
            while True:
                number = chance.randrange(PATHS)
                path = path_of(number)
                done = put(pool, path)
                assert not done.declined
                noted[number] = OK
                with pool.match(tokens_of(path)) as hit:
                    assert check_hit(hit, path) == len(path), "a block that was put is lost"
    except BaseException as error:
        with open(verdict, "a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
        raise


def make_and_put(state: State, number: int) -> int:
    state["pool"] = pool = KVPool(Space.open("shelf"), LAYOUT, BLOCK)  # of all the room there is
    put(pool, [number])
    return int(pool.stats()["capacity_blocks"])


def look_in(state: State, number: int) -> int:
    return look(state["pool"], [number])


def read_only() -> tuple[int, bool]:
    with Space.open("shelf", "r") as space:
        pool = KVPool(space, LAYOUT, BLOCK)
        found = look(pool, [1, 2])
        try:
            put(pool, [3])
        except NotPermitted:
            return found, True
        return found, False
