"""What the keys in etcd hold, read with care: whoever can write to etcd may have written anything there.

What no host writes is no agreement: hosts go on with what they have, as without etcd.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, get_type_hints

from openshelf.errors import BadInput, NoAgreement
from openshelf.membership.base import MOST_REPLICAS, Copy, Kept, Owner, Spec

FORMAT = 1
MOST_PLACES = 1 << 10
_MOST_DIMENSIONS = 64
_MOST = 1 << 62  # of an epoch, a term or an address: one more is still a number for native code
_END, _GRAIN = 1 << 47, 2 << 20  # of addresses
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_HOST = re.compile(r"[!-~]{1,300}:[0-9]{1,5}")
_LIFE = re.compile(r"[!-~]{0,64}")
_ID = re.compile(r"[0-9a-f]{1,16}")


class Segment(NamedTuple):
    """Whose a range of addresses is."""

    host: str
    term: int
    life: str


def number_of(text: str, key: str, most: int = _MOST) -> int:
    """A decimal number below `most`: an epoch, a term, or the last part of a key."""
    if not _NUMBER.fullmatch(text) or int(text) >= most:
        raise _wrong(key, text)
    return int(text)


def segment_of(text: str, key: str) -> Segment:
    found = _fields(text, key, Segment)
    if not _HOST.fullmatch(found["host"]) or "," in found["host"] or not _LIFE.fullmatch(found["life"]):
        raise _wrong(key, text)
    return Segment(**found)


def owner_of(text: str, key: str) -> Owner:
    return Owner(**_fields(text, key, Owner))


def kept_of(text: str, key: str) -> Kept:
    found = _object(text, key)
    copies, shape = found.pop("copies", None), found.pop("shape", None)
    if not isinstance(copies, list) or not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise _wrong(key, text)
    if not all(type(size) is int and 0 <= size < _MOST for size in shape):
        raise _wrong(key, text)
    made = []
    for copy in copies:
        if not isinstance(copy, list) or len(copy) != len(Copy._fields):
            raise _wrong(key, text)
        made.append(Copy(**_fields(json.dumps(dict(zip(Copy._fields, copy, strict=True))), key, Copy)))
    if any(copy.number >= MOST_PLACES or not _LIFE.fullmatch(copy.life) for copy in made):
        raise _wrong(key, text)
    rest = _fields(json.dumps({**found, "copies": "", "shape": ""}), key, Kept)
    return Kept(**{**rest, "copies": tuple(made), "shape": tuple(shape)})


def spec_of(text: str, key: str) -> Spec:
    """BadInput for a space of another version."""
    found = _object(text, key)
    version = found.pop("format", None)
    if type(version) is not int:
        raise _wrong(key, text)
    if version != FORMAT:
        raise BadInput(f"{key} in etcd is of another version of Openshelf: {_shown(text)}")
    spec = Spec(**_fields(json.dumps(found), key, Spec))
    end = spec.base + spec.places * spec.reserve
    sizes = min(spec.base, spec.reserve, spec.places) > 0 and spec.places <= MOST_PLACES and end <= _END
    sizes = sizes and 1 <= spec.replicas <= MOST_REPLICAS
    if not sizes or spec.base % _GRAIN or spec.reserve % _GRAIN or not _ID.fullmatch(spec.id):
        raise _wrong(key, text)
    return spec


def realm_of(spec: Spec) -> int:
    """The number by which hosts know each other to be of one space. Never 0, which is that of a fixed list."""
    return int(spec.id, 16) or 1


def _fields(text: str, key: str, kind: type[Segment | Owner | Spec | Copy | Kept]) -> dict[str, Any]:
    """An object with the fields of a tuple: text, or numbers that native code can take."""
    found = _object(text, key)
    if not set(found) <= set(kind._fields) or not set(kind._fields) <= set(found) | set(kind._field_defaults):
        raise _wrong(key, text)
    expected = get_type_hints(kind)
    for name, value in found.items():
        if expected[name] is int:
            right = type(value) is int and 0 <= value < _MOST
        else:
            right = isinstance(value, str) or (value is None and expected[name] is not str)
        if not right:
            raise _wrong(key, text)
    return found


def _object(text: str, key: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(key, text) from None
    if not isinstance(found, dict):
        raise _wrong(key, text)
    return found


def _wrong(key: str, text: str) -> NoAgreement:
    return NoAgreement(
        f"{key} in etcd holds what no host writes: {_shown(text)}. Hosts go on with what they have; put back what was "
        "there, and protect etcd from whoever changed it"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")
