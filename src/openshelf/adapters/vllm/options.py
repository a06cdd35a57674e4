"""The options of a connector: what kv_connector_extra_config may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from openshelf.errors import BadInput, Mismatch
from openshelf.space import parse_size

_WHERE = "kv_connector_extra_config"
_SIZES = ("size", "capacity", "quota")


@dataclass(frozen=True)
class Options:
    """`space`: its name; it is made if there is none and `size` is given. `pool`, `capacity`, `tenant`, `salt` and
    `quota` are a KVPool's. `model`: a name for the weights and their revision, instead of a hash of them."""

    space: str
    size: str | int | None = None
    pool: str = "kv"
    capacity: str | int | None = None
    tenant: str = ""
    salt: str = ""
    quota: str | int | None = None
    model: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """BadInput or Mismatch, naming the option, if one is unknown, missing or wrong."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise BadInput(f"{_WHERE} has no option {name!r}; there are {', '.join(known)}")
        if not given.get("space"):
            raise BadInput(f"{_WHERE} needs 'space', the name of a space, as in {{'space': 'kv', 'size': '16GiB'}}")
        for name, value in given.items():
            if name in _SIZES:
                _check_size(name, value)
            elif not isinstance(value, str) and not (name == "model" and value is None):
                raise Mismatch(f"{_WHERE}: {name!r} is text, got {value!r}")
        return cls(**given)


def _check_size(name: str, value: Any) -> None:
    if value is None:
        return
    try:
        parse_size(value)
    except BadInput as error:
        raise BadInput(f"{_WHERE}: {name!r}: {error}") from None
