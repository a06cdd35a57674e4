"""One number decides what a storm does: the operations of every life of every worker, and what is done to them.

Times differ from run to run, orders do not. An operation names what it wants by numbers; whether the space is there
just then is the worker's to find out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.storm.ledger import NAMES, SPACES, WORKERS

KINDS = ("plain", "tiered", "durable", "hosts", "agreed")
OVER_HOSTS = ("hosts", "agreed")  # with a list of hosts in a file; by etcd

_EVERYWHERE = {
    "put": 10, "draft": 5, "abandon": 2, "delete": 4, "rename": 4, "look": 12, "hold": 7, "look_again": 6, "drop": 3,
    "unnamed": 2, "send": 3, "receive": 3, "take_lock": 3, "add": 2, "open": 6, "close": 3, "fork": 2, "list": 1,
    "describe": 1,
}  # fmt: skip
_ONE_HOST = {"create": 6, "remove": 3, "contest": 4, "read_only": 2, "members": 1}
_FLASH = {"demote": 5, "prefetch": 5, "pin": 3, "press": 2}
OPERATIONS: dict[str, dict[str, int]] = {
    "plain": _EVERYWHERE | _ONE_HOST | {"grow": 1},
    "tiered": _EVERYWHERE | _ONE_HOST | _FLASH,
    "durable": _EVERYWHERE | _ONE_HOST | _FLASH | {"flush": 5, "remove": 1},
}
OPERATIONS["hosts"] = OPERATIONS["agreed"] = _EVERYWHERE | {"fetch": 6}
EVENTS: dict[str, dict[str, int]] = {
    "plain": {"kill": 8, "kill_all": 1, "stop": 3, "kill_child": 2},
    "tiered": {"kill": 6, "kill_all": 1, "stop": 3, "kill_child": 2, "kill_keeper": 6, "stop_keeper": 2},
    "durable": {"kill": 4, "stop": 2, "kill_child": 1, "kill_keeper": 4, "stop_keeper": 1, "power_cut": 3},
    "hosts": {"kill": 6, "kill_all": 1, "stop": 3, "kill_child": 2, "kill_keeper": 3, "stop_keeper": 2, "remake": 3},
}
EVENTS["agreed"] = EVENTS["hosts"] | {"stop_server": 2, "kill_server": 2, "lose_servers": 1, "give_up": 3}
_SIZES = (2, 60, 700, 3_000, 9_000, 40_000, 131_072, 262_144)  # in words of 8 bytes; the last is 2 MiB
_WEIGHTS = (1, 4, 4, 4, 4, 4, 2, 1)


class Operation(NamedTuple):
    """One step of a worker."""

    what: str
    space: int
    name: int
    other: int
    owner: int
    length: int
    chance: float


class Event(NamedTuple):
    """What is done to a worker or a keeper, after a pause."""

    what: str
    whom: int
    seconds: float
    pause: float


def operations(kind: str, seed: int, slot: int, life: int) -> Iterator[Operation]:
    """Of one life of a worker, without end."""
    draw = random.Random(f"{kind} {seed} {slot} {life}")
    wheel, weights = list(OPERATIONS[kind]), list(OPERATIONS[kind].values())
    while True:
        name, other = draw.sample(range(NAMES), 2)
        yield Operation(
            draw.choices(wheel, weights)[0],
            draw.choices(range(SPACES), (3, 3, 1))[0],
            name,
            other,
            draw.randrange(WORKERS),
            draw.choices(_SIZES, _WEIGHTS)[0],
            draw.random(),
        )


def events(kind: str, seed: int, pace: float = 0.25) -> Iterator[Event]:
    """What the storm does, without end."""
    draw = random.Random(f"{kind} {seed} storm")
    wheel, weights = list(EVENTS[kind]), list(EVENTS[kind].values())
    while True:
        yield Event(
            draw.choices(wheel, weights)[0],
            draw.randrange(WORKERS),
            draw.choice([0.01, 0.05, 0.3, 0.8]),
            draw.random() * draw.choice([0.1, 1, 2]) * pace,
        )
