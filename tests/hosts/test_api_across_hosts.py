"""The tests of a space on one host, run across two: the bytes live on one, the test is on the other.

Every test of these modules that uses the fixture `space` is here, but those that are about something else; each of
them says why.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from openshelf import Space
from tests.hosts.across import Across, across
from tests.processes import Peer
from tests.space import (
    test_arrays,
    test_atomics,
    test_channel,
    test_dtypes,
    test_errors,
    test_misuse,
    test_read_only,
    test_space,
    test_sync,
    test_views,
)

MODULES: tuple[ModuleType, ...] = (
    test_arrays, test_atomics, test_channel, test_dtypes, test_errors, test_misuse, test_read_only, test_space,
    test_sync, test_views,
)  # fmt: skip

_REMOVED = "removes the space by name on one host, where it has the bytes; by URL only the own part goes"
_ROOM = "counts the bytes of one host"
_FILES = "looks into the files of the space, which are on the other host"
_FRESH = "opens the space by name in an interpreter of its own, where no URL stands for the name"
_KILLED = "counts bytes right after a kill; from another host that is noticed a little later: test_losses.py"

NOT_ACROSS: dict[str, str] = {
    "test_full_space_says_how_much_is_free": _ROOM,
    "test_other_process_keeps_its_view_after_remove": _REMOVED,
    "test_use_after_remove_says_so": _REMOVED,
    "test_nobody_waits_in_a_removed_space": _REMOVED,
    "test_all_member_slots_taken_says_so": _FILES,
    "test_other_user_may_not_open_a_private_space": _FILES,
    "test_occupied_base_address_names_what_is_there": "occupies the base of a space on one host",
    "test_ctrl_c_ends_waiting": _FRESH,
}


def _take(module: ModuleType) -> None:
    for name, function in vars(module).items():
        if name.startswith("test_") and "space" in inspect.signature(function).parameters and name not in NOT_ACROSS:
            assert name not in globals(), f"two tests are called {name}"
            globals()[name] = function


for _module in MODULES:
    _take(_module)


def test_list_of_exceptions_names_only_tests_that_exist() -> None:
    known = {name for module in MODULES for name in vars(module)}
    assert set(NOT_ACROSS) <= known


@pytest.fixture
def hosts() -> Iterator[Across]:
    with across("shelf", *MODULES) as made:
        yield made


@pytest.fixture
def home(hosts: Across) -> object:
    """The directory of spaces of the host that this process is on."""
    return hosts.cluster[1].directory


@pytest.fixture
def space(hosts: Across) -> Iterator[Space]:
    with Space.open("shelf", contribute="16MiB") as made:
        yield made
    del made
    gc.collect()  # views that a failed test left in reference cycles


@pytest.fixture
def peer(hosts: Across) -> Iterator[Peer]:
    with hosts.peer() as process:
        yield process
