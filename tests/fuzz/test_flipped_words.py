"""One bit of a word that says what is to become of an array: nothing is taken away for it.

The cases of test_metadata_at_rest are drawn; these are all there are. A record's state alone, and together with what
leads to the record: before version 4, one bit made an array one that is being removed, and it went with its name.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import Corrupt, OpenshelfError
from tests.conftest import alive
from tests.fuzz import cases
from tests.fuzz.test_metadata_at_rest import prepare
from tests.space.tiers.shelves import keeper, wait_until

LIVE = 0xA1865506AADBF831  # docs/formats/space.md, as are the places below
REMOVED, SEAL = 1280, 1288
INLINE, RENAMED = 1, 5  # numbers of arrays: one with the name that it was made with, one that was renamed


class Killed:
    """A space whose processes were all killed, and where things are in its control file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        context: Any = multiprocessing.get_context("spawn")
        maker = context.Process(target=prepare, args=(str(directory), False))
        maker.start()
        maker.join()
        assert maker.exitcode == 0
        self.pristine = cases.Pristine(directory)

    def record(self, number: int) -> int:
        """Where the record of an array is, by the name that it was made with."""
        name = (f"old/{number}" if number % 5 == 0 else cases.name_of(number)).encode()
        found = []
        for start, data in self.pristine.parts[cases.CONTROL]:
            for at in range(0, len(data) - 128, 64):
                if data[at : at + 8] != LIVE.to_bytes(8, "little"):
                    continue
                _, descr, length, dimensions, _ = struct.unpack_from("<HHHBB", data, at + 56)
                inline = at + 64 + 8 * dimensions + descr
                if data[inline : inline + length] == name:
                    found.append(start + at)
        (at,) = found
        return at

    def word(self, record: int) -> int:
        """Where the index's word of a record is: its offset below a tag of 16 bits."""
        found = []
        for start, data in self.pristine.parts[cases.CONTROL]:
            words = struct.unpack(f"<{len(data) // 8}Q", data)
            found += [start + at * 8 for at, word in enumerate(words) if word & (1 << 48) - 1 == record and word >> 48]
        (at,) = found
        return at

    def flip(self, *bits: tuple[int, int]) -> None:
        handle = os.open(self.directory / cases.CONTROL, os.O_RDWR)
        for at, bit in bits:
            old = os.pread(handle, 1, at + bit // 8)[0]
            os.pwrite(handle, bytes([old ^ 1 << bit % 8]), at + bit // 8)
        os.close(handle)

    def judge(self, *bits: tuple[int, int]) -> str:
        """What opening the space says with these bits flipped; they are put back."""
        self.flip(*bits)
        said = cases.judge(str(self.directory), use=False)
        self.pristine.restore(data=False)
        return said


@pytest.fixture
def killed(home: Path) -> Iterator[Killed]:
    yield Killed(home / "flipped")
    Space.remove("flipped")


@pytest.mark.parametrize("number", [INLINE, RENAMED], ids=["made so", "renamed"])
def test_a_flipped_bit_of_a_state_is_repaired_from_the_index_and_said(
    killed: Killed, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    record = killed.record(number)
    assert [killed.judge((record, bit)) for bit in range(64)] == ["right"] * 64
    assert capfd.readouterr().err.count("1 arrays had no valid state; they are in the index, and were kept") == 64


@pytest.mark.parametrize("number", [INLINE, RENAMED], ids=["made so", "renamed"])
@pytest.mark.parametrize("lost", ["its tag", "its offset"])
def test_an_array_whose_place_in_the_index_is_damaged_too_is_refused(killed: Killed, number: int, lost: str) -> None:
    record = killed.record(number)
    word = killed.word(record)
    other = (word, 50 if lost == "its tag" else 20)
    assert [killed.judge((record, bit), other) for bit in range(64)] == ["refused"] * 64


def test_no_bit_of_a_name_block_is_taken_for_another_name(killed: Killed) -> None:
    record = killed.record(RENAMED)
    with (killed.directory / cases.CONTROL).open("rb") as file:
        file.seek(record + 16)
        *names, renamed = struct.unpack("<3Q", file.read(24))
    bits = 8 * (8 + len(cases.name_of(RENAMED)))
    assert [killed.judge((names[renamed - 1 & 1], bit)) for bit in range(bits)] == ["refused"] * bits


@pytest.mark.parametrize("sealed", [True, False], ids=["closed in order", "all killed"])
def test_no_bit_of_the_header_makes_another_space_of_it(killed: Killed, sealed: bool) -> None:
    """Its size at first and whether it was removed, too: nobody takes it for a space that is to be cleaned up."""
    if sealed:
        Space.open("flipped").close()
        killed.pristine = cases.Pristine(killed.directory)
    places = [(at, bit) for at in (16, 24, 32, 40, 48, 56, 64, 72, 1216, 1224, REMOVED, SEAL) for bit in range(64)]
    assert {place: said for place in places if (said := killed.judge(place)) != "refused"} == {}


def test_a_damaged_word_that_says_removed_is_not_believed(killed: Killed) -> None:
    for bit in range(64):
        killed.flip((REMOVED, bit))
        with pytest.raises(Corrupt, match="neither that the space is there nor that it was removed"):
            Space.open("flipped")
        killed.pristine.restore(data=False)


def test_a_flipped_bit_of_where_a_unit_is_sends_no_keeper_elsewhere_for_it(home: Path, tmp_path: Path) -> None:
    """Dirty bytes are in memory only: one bit, and they were dropped for the older ones on flash, or for zeros."""
    with Space.create("shelf", "32MiB", flash=f"{tmp_path}/flash:64MiB") as space:
        first = space.put("x", np.arange(1 << 17)).address
        unit = (first - int(space.describe()["data_address"])) // 65536 + 1  # the first may be another's, too
        pid = keeper(space)
    os.kill(pid, signal.SIGKILL)  # not before: whoever has the space open would start the next
    wait_until(lambda: not alive(pid))
    place = 4 * 4096 + 16 * unit
    handle = os.open(home / "shelf" / "tiers", os.O_RDWR)
    word = os.pread(handle, 8, place)
    assert word[0] == 0x55  # dirty
    for bit in (0, 3, 6):  # each takes the time in which the next keeper could come
        os.pwrite(handle, bytes([word[0] ^ 1 << bit]), place)
        with pytest.raises(OpenshelfError, match=f"does not say where unit {unit} is"):
            Space.open("shelf")
    os.pwrite(handle, word, place)
    os.close(handle)
    with Space.open("shelf") as space:
        assert np.array_equal(space["x"].numpy(), np.arange(1 << 17))
    Space.remove("shelf")
