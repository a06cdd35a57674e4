"""A header that passes its checksum and says what an attacker wants: the hash is no secret."""

from __future__ import annotations

import struct

from openshelf import _core

TIERS, BACKING, MADE, CHECK = 72, 192, 1216, 1224  # docs/formats/space.md
_MASK = (1 << 64) - 1


def _mix(state: int, word: int) -> int:
    state = ((state ^ word) * 0x9FB21C651E98DF25) & _MASK
    return state ^ state >> 32


def _hash(data: bytes, seed: int) -> int:
    state = seed ^ len(data) * 0x9E3779B97F4A7C15 & _MASK
    lanes = [state, state ^ 1, state ^ 2, state ^ 3]
    words = [word for (word,) in struct.iter_unpack("<Q", data)]
    whole = len(words) // 4 * 4
    for at, word in enumerate(words[:whole]):
        lanes[at % 4] = _mix(lanes[at % 4], word)
    for word in (*lanes, *words[whole:]):
        state = _mix(state, word)
    state = _mix(state, 0x2545F4914F6CDD1D)
    return _mix(state, state >> 29)


def with_backing(header: bytes, path: str) -> bytes:
    """The header, naming another file for the data."""
    named = bytearray(header[:CHECK])
    named[BACKING:MADE] = path.encode().ljust(MADE - BACKING, b"\0")
    return checked(bytes(named))


def checked(header: bytes) -> bytes:
    """Its first bytes, as they are, with the checksum of them."""
    return header[:CHECK] + struct.pack("<Q", _hash(header[:CHECK], _core.VERSION))
