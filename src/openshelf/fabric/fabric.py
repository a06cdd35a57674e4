"""Fabric: what the hardware is, as data from a file or a probe, and what moving bytes on it costs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from openshelf import _files
from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import cost as costs
from openshelf.fabric import join, yaml_reader
from openshelf.fabric.cost import Cost
from openshelf.fabric.fields import Checked, Problem, nearest, not_empty
from openshelf.fabric.files import find
from openshelf.fabric.include import load
from openshelf.fabric.library import Library
from openshelf.fabric.model import Compute, Link, Place, Protocol
from openshelf.fabric.schema import schema_of
from openshelf.fabric.wiring.media import Medium, media
from openshelf.fabric.wiring.network import Network, Semantics
from openshelf.fabric.wiring.protocols import Access, MemoryProtocol, MessageProtocol, Protocols, protocols
from openshelf.fabric.wiring.wires import Switch, Wire, switches

if TYPE_CHECKING:
    from openshelf.fabric.wiring.topology import Topology

FORMAT = 1


@dataclass(frozen=True)
class Fabric(Checked):
    """Memory places, the links between them, what computes, and how many of it are joined: one machine or many.

    Of many equal machines the file describes one, and the topology joins its `endpoint`s, each a compute by name;
    endpoints that are memory only are the place `memory_endpoint`. `library` is what software between ranks and wires
    costs. `media`, `protocols` and `switches` add to those that come with the package, or replace them by name.
    """

    format: int = field(default=FORMAT, kw_only=True)
    name: str = field(metadata=not_empty)
    note: str = field(default="", kw_only=True)
    left_out: tuple[str, ...] = field(default=(), kw_only=True)
    places: tuple[Place, ...] = field(metadata=not_empty)
    links: tuple[Link, ...] = ()
    compute: tuple[Compute, ...] = ()
    include: tuple[str, ...] = field(default=(), kw_only=True)
    media: tuple[Medium, ...] = field(default=(), kw_only=True)
    protocols: Protocols | None = field(default=None, kw_only=True)
    wires: tuple[Wire, ...] = field(default=(), kw_only=True)
    switches: tuple[Switch, ...] = field(default=(), kw_only=True)
    endpoint: str = field(default="", kw_only=True)
    memory_endpoint: str = field(default="", kw_only=True)
    topology: Topology | None = field(default=None, kw_only=True)
    library: Library | None = field(default=None, kw_only=True)

    @classmethod
    def later_types(cls) -> dict[str, Any]:
        """Types of fields that are imported with the first fabric: a process that makes none starts sooner."""
        from openshelf.fabric.wiring.topology import Topology

        return {"Topology": Topology}

    @classmethod
    def load(cls, name: str | os.PathLike[str] = "local") -> Fabric:
        """The fabric of a YAML file, a preset, or (`local`) what `openshelf probe` wrote for this user.

        A PathLike, or a name with a slash or a YAML suffix, is a file. `OPENSHELF_FABRIC`, if set, says what
        `local` is: a file or a preset. Raises UnknownName if there is no such fabric, BadInput with all its
        problems if the file is not valid.
        """
        return yaml_reader.read(cls, load(cls, find(name)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the YAML file, whole or not at all; folders above it are made."""
        target = _files.given_path(path, "the file of a fabric")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _files.write_own(target, self.yaml().encode(), 0o644)
        except OSError as error:
            raise BadInput(f"cannot write the fabric to {str(target)!r}: {error.strerror}") from error

    def yaml(self) -> str:
        """The YAML text that `save` writes."""
        return yaml_reader.dump(self)

    def plain(self) -> dict[str, Any]:
        """Dicts, lists and scalars, as in the file: what `json.dumps` takes and `schema()` describes."""
        made: dict[str, Any] = yaml_reader.plain(self)
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

    @cached_property
    def known_media(self) -> dict[str, Medium]:
        """Media by name: the package's, and this fabric's own."""
        return media() | {each.name: each for each in self.media}

    @cached_property
    def known_protocols(self) -> dict[str, MemoryProtocol | MessageProtocol]:
        """Protocols by name: the package's, and this fabric's own."""
        return protocols() | (self.protocols.all if self.protocols else {})

    @cached_property
    def known_switches(self) -> dict[str, Switch]:
        """Switches by name: the package's, and this fabric's own."""
        return switches() | {each.name: each for each in self.switches}

    @cached_property
    def network(self) -> Network:
        """The topology, compiled; raises BadInput if the fabric has none."""
        return join.network(self)

    def semantics(self, nbytes: int, source: int, target: int, *, access: Access = "store") -> Semantics:
        """What `nbytes` from one endpoint of the topology to another cost beside the wires, by the wires' protocols.

        Where a way crosses several protocols, each one's overhead is paid, and the narrowest holds. `access`: the
        source stores (or sends), or the target loads (or asks, and is sent).
        """
        return join.semantics(self, nbytes, source, target, access)

    def crossed(self, source: int, target: int) -> list[str]:
        """The names of the wires on the way from one endpoint of the topology to another."""
        return [each.name for each in join.crossed(self, self.network.path(source, target))]

    def send(self, nbytes: int, source: int, target: int, *, access: Access = "store") -> Cost:
        """What `nbytes` from one endpoint of the topology to another cost, alone there; memories not counted."""
        return join.send(self, nbytes, source, target, access)

    def cost(
        self, nbytes: int, source: str, target: str, *, protocol: Protocol | None = None, access: Access = "store"
    ) -> Cost:
        """What moving `nbytes` from one place to another costs, by the way that is fastest for that size.

        t = latency + nbytes / bandwidth: latencies of all places and links on the way add up, the narrowest
        of reading the source, the links and writing the target sets the bandwidth, and a place in between is
        both written and read. From a place to itself it is a copy there. `protocol` restricts the links:
        `message` from a place to itself is the loopback. Contention with other transfers is not in it.
        """
        rules = costs.Rules(access=access)
        if any(link.protocol not in ("memory", "message") or link.medium for link in self.links):
            rules = costs.Rules(self.known_protocols, self.known_media, access)  # read from files, the first time
        return costs.transfer(nbytes, self.place(source), self.place(target), self.places, self.links, protocol, rules)

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
        return costs.access(nbytes, self.place(place), stride, page_bytes, load_bytes_per_s)

    def problems(self) -> list[Problem]:
        found = super().problems()
        if found:
            return found
        if self.format != FORMAT:
            found.append((("format",), f"expected format {FORMAT}, {self.format} came: made by another version"))
        for kind in ("places", "links", "compute", "media", "wires", "switches"):
            found += _twice(kind, [thing.name for thing in getattr(self, kind)])
        names = [place.name for place in self.places]
        used = [
            (("links", i, end), getattr(k, end)) for i, k in enumerate(self.links) for end in ("from_place", "to_place")
        ]
        used += [(("compute", i, "place"), compute.place) for i, compute in enumerate(self.compute)]
        for where, name in used:
            if name not in names:
                message = f"no place is named {name!r}; expected one of {', '.join(names)}{nearest(name, names)}"
                found.append((where, message))
        return found or join.problems(self)


def _twice(kind: str, names: Sequence[str]) -> list[Problem]:
    return [
        ((kind, i, "name"), f"the name {name!r} is taken by {kind}[{names.index(name)}]")
        for i, name in enumerate(names)
        if name in names[:i]
    ]
