"""Fabric: what the hardware is, as data from a file or a probe, and what moving bytes on it costs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import _cost, _yaml
from openshelf.fabric._cost import Cost
from openshelf.fabric._fields import Checked, Problem, nearest, not_empty
from openshelf.fabric._files import find
from openshelf.fabric._model import Compute, Link, Place, Protocol
from openshelf.fabric._schema import schema_of

FORMAT = 1


@dataclass(frozen=True)
class Fabric(Checked):
    """Memory places, the links between them, and what computes: one machine or many."""

    format: int = field(default=FORMAT, kw_only=True)
    name: str = field(metadata=not_empty)
    note: str = field(default="", kw_only=True)
    left_out: tuple[str, ...] = field(default=(), kw_only=True)
    places: tuple[Place, ...] = field(metadata=not_empty)
    links: tuple[Link, ...] = ()
    compute: tuple[Compute, ...] = ()

    @classmethod
    def load(cls, name: str | os.PathLike[str] = "local") -> Fabric:
        """The fabric of a YAML file, a preset, or (`local`) what `openshelf probe` wrote for this user.

        A PathLike, or a name with a slash or a YAML suffix, is a file. `OPENSHELF_FABRIC`, if set, says what
        `local` is: a file or a preset. Raises UnknownName if there is no such fabric, BadInput with all its
        problems if the file is not valid.
        """
        path = find(name)
        try:
            text = path.read_bytes()
        except OSError as error:
            raise BadInput(f"cannot read the fabric {str(path)!r}: {error.strerror}") from error
        return _yaml.parse(cls, text, str(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML file, whole or not at all; folders above it are made."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(self.yaml(), encoding="utf-8")
            os.replace(partial, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise BadInput(f"cannot write the fabric to {str(target)!r}: {error.strerror}") from error

    def yaml(self) -> str:
        """The YAML text that `save` writes."""
        return _yaml.dump(self)

    def plain(self) -> dict[str, Any]:
        """Dicts, lists and scalars, as in the file: what `json.dumps` takes and `schema()` describes."""
        made: dict[str, Any] = _yaml.plain(self)
        return made

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The JSON schema of the file, derived from these classes."""
        return schema_of(cls)

    def place(self, name: str) -> Place:
        """The place of that name; raises UnknownName with the nearest ones."""
        for place in self.places:
            if place.name == name:
                return place
        names = [place.name for place in self.places]
        raise UnknownName(f"no place {name!r} in fabric {self.name!r}; it has {', '.join(names)}{nearest(name, names)}")

    def cost(self, nbytes: int, source: str, target: str, *, protocol: Protocol | None = None) -> Cost:
        """What moving `nbytes` from one place to another costs, by the way that is fastest for that size.

        t = latency + nbytes / bandwidth: latencies of all places and links on the way add up, the narrowest
        of reading the source, the links and writing the target sets the bandwidth, and a place in between is
        both written and read. From a place to itself it is a copy there. `protocol` restricts the links:
        `message` from a place to itself is the loopback. Contention with other transfers is not in it.
        """
        return _cost.transfer(nbytes, self.place(source), self.place(target), self.places, self.links, protocol)

    def access(
        self,
        nbytes: int,
        place: str,
        stride: int | None,
        *,
        page_bytes: int | None = None,
        load_bytes_per_s: float = 0.0,
    ) -> Cost:
        """What loading from a range of `nbytes` in `place` costs one processor, with no cache to help.

        `stride` is the distance of one load from the next, in bytes. Memory moves in lines, so a range is a
        number of lines, and the first always costs one latency:

        - up to `line_bytes`: every line, in order; prefetchers keep up, so each costs line_bytes / read
          bandwidth;
        - larger: one line per load, nbytes / stride of them, each at the same price: prefetchers follow a
          stride;
        - `page_bytes` and more: every load is on a new page, where prefetchers stop; as random;
        - None, random: every line once, in an unknown order. Each costs latency / parallel_loads (1 if not
          measured: a chain of pointers), but never less than its share of the bandwidth.

        `page_bytes` asks for the figures of another page size, `load_bytes_per_s` for the latency while
        others move that much; both raise BadInput if the fabric does not know.
        """
        return _cost.access(nbytes, self.place(place), stride, page_bytes, load_bytes_per_s)

    def problems(self) -> list[Problem]:
        found = super().problems()
        if found:
            return found
        if self.format != FORMAT:
            found.append((("format",), f"expected format {FORMAT}, {self.format} came: made by another version"))
        for kind, things in (("places", self.places), ("links", self.links), ("compute", self.compute)):
            found += _twice(kind, [thing.name for thing in things])
        names = [place.name for place in self.places]
        used = [
            (("links", i, end), getattr(k, end)) for i, k in enumerate(self.links) for end in ("from_place", "to_place")
        ]
        used += [(("compute", i, "place"), compute.place) for i, compute in enumerate(self.compute)]
        for where, name in used:
            if name not in names:
                message = f"no place is named {name!r}; expected one of {', '.join(names)}{nearest(name, names)}"
                found.append((where, message))
        return found


def _twice(kind: str, names: Sequence[str]) -> list[Problem]:
    return [
        ((kind, i, "name"), f"the name {name!r} is taken by {kind}[{names.index(name)}]")
        for i, name in enumerate(names)
        if name in names[:i]
    ]
