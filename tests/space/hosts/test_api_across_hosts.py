"""The tests of a space on one host, run across two: the bytes live on one, the test is on the other.

Every test of these modules that uses the fixture `space` is here, but those that are about something else; each of
them says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from openshelf import Space
from tests.conftest import collect
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
    test_surroundings,
    test_sync,
    test_views,
)
from tests.space.hosts.harness.across import Across

MODULES: tuple[ModuleType, ...] = (
    test_arrays, test_atomics, test_channel, test_dtypes, test_errors, test_misuse, test_read_only, test_space,
    test_surroundings, test_sync, test_views,
)  # fmt: skip

_REMOVED = "removes the space by name on one host, where it has the bytes; by URL only the own part goes"
_ROOM = "counts the bytes of one host"
_PLACE = "looks where the own part's bytes begin; these are on the other host"
_FILES = "looks into the files of the space, which are on the other host"
_FRESH = "opens the space by name in an interpreter of its own, where no URL stands for the name"
_NAMES = "lists the spaces of one host by name; this one has a URL"
_KILLED = "counts bytes right after a kill; from another host that is noticed a little later: test_losses.py"
_LONG = "many thousand round trips show nothing that fewer do not"
_MEMBERS = "counts the members of one host; here a keeper is one too"

NOT_ACROSS: dict[str, str] = {
    "test_wrong_shapes_are_named": "addresses an array that nobody holds any more",
    "test_full_space_says_how_much_is_free": _ROOM,
    "test_describe_counts_members_and_free_bytes": _ROOM,
    "test_killed_readers_memory_comes_back": _ROOM,
    "test_killed_forked_childs_pins_go_with_it": _ROOM,
    "test_other_process_keeps_its_view_after_remove": _REMOVED,
    "test_use_after_remove_says_so": _REMOVED,
    "test_nobody_waits_in_a_removed_space": _REMOVED,
    "test_all_member_slots_taken_says_so": _FILES,
    "test_other_user_may_not_open_a_private_space": _FILES,
    "test_where_tells_what_an_address_means": _PLACE,
    "test_address_means_the_same_bytes_in_every_process": _PLACE,
    "test_address_where_no_array_is_says_so": _PLACE,
    "test_unknown_name_lists_the_nearest": _NAMES,
    "test_unknown_mode_and_group_are_refused": _NAMES,
    "test_forked_child_uses_the_space_of_its_parent_on_its_own": _MEMBERS,
    "test_killed_senders_and_receivers_leak_nothing": _KILLED,
    "test_channels_take_bytes_text_and_arrays_of_their_space": "sends an array of a space of this host only",
    "test_occupied_base_address_names_what_is_there": "occupies the base of a space on one host",
    "test_ctrl_c_ends_waiting": _FRESH,
    "test_thousands_of_names_are_all_found": _LONG,
    "test_unknown_names_answer_quickly_in_a_large_space": _LONG,
    "test_additions_of_several_processes_are_all_counted": f"{_LONG}; test_litmus.py has the contention",
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


_kept: list[Across] = []


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    while _kept:
        _kept.pop().close()


@pytest.fixture
def hosts() -> Iterator[Across]:
    """Of the test before, if that left them as they were."""
    made = _kept.pop() if _kept else Across("shelf")
    try:
        with made.applied(*MODULES):
            yield made
        collect()
        if made.clear():
            _kept.append(made)
            return
    finally:
        if made not in _kept:
            made.close()


@pytest.fixture
def home(hosts: Across) -> object:
    """The directory of spaces of the host that this process is on."""
    return hosts.cluster[1].directory


@pytest.fixture
def space(hosts: Across) -> Iterator[Space]:
    with Space.open("shelf", contribute="16MiB") as made:
        yield made


@pytest.fixture
def peer(hosts: Across) -> Iterator[Peer]:
    with hosts.peer() as process:
        yield process
