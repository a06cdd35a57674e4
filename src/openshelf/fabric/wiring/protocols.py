"""Protocols: what crossing a wire costs, with memory semantics or with message semantics.

A load asks the far memory for a line and waits; so many may be in flight, so their bytes over the round trip bound the
rate. A store is posted. A message is posted by a doorbell, fetched by the card unless it came along with the
doorbell, cut into frames, completed; what is unacknowledged is bounded by a window. Either way the answer is a
`Semantics`: the cost model and the simulator both go by it, so they cannot disagree. Left out: retransmission,
credits, congestion control.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from openshelf.errors import BadInput
from openshelf.fabric import yaml_reader
from openshelf.fabric.fields import Checked, Problem, above_zero, not_empty, zero_or_more
from openshelf.fabric.model import Figure, Source, weakest
from openshelf.fabric.wiring.media import DATA
from openshelf.fabric.wiring.network import Semantics

Access = Literal["load", "store"]
Coherence = Literal["directory", "none"]


@dataclass(frozen=True)
class Framing(Checked):
    """Payload is cut into pieces, each with so many bytes beside it on the wire: headers, CRC, FEC, gaps.

    Of `code_total` bits on the wire `code_payload` are bits of frames (128 of 130 in PCIe 5).
    """

    payload_bytes: int = field(metadata=above_zero)
    overhead_bytes: int = field(metadata=zero_or_more)
    code_payload: int = field(default=1, metadata=above_zero)
    code_total: int = field(default=1, metadata=above_zero)

    @property
    def efficiency(self) -> float:
        """The share of the wire's bits that is payload."""
        frame = self.payload_bytes / (self.payload_bytes + self.overhead_bytes)
        return frame * self.code_payload / self.code_total


@dataclass(frozen=True)
class MemoryProtocol(Checked):
    """Loads and stores of lines.

    `end_s` is what the controllers at both ends add to one load; `outstanding` is how many lines an endpoint has in
    flight. Without coherence in hardware software must flush: `store_bytes_per_s` and `load_bytes_per_s` are
    what is left of the rate then. `known_from_bytes` to `known_to_bytes` are the sizes that figures were measured
    at, if any: beyond them a cost says that it is extrapolated.
    """

    name: str = field(metadata=not_empty)
    framing: Framing
    line_bytes: int = field(metadata=above_zero)
    outstanding: Figure
    end_s: Figure
    coherence: Coherence
    note: str = ""
    store_bytes_per_s: Figure | None = None
    load_bytes_per_s: Figure | None = None
    known_from_bytes: int = field(default=0, metadata=zero_or_more)
    known_to_bytes: int = field(default=0, metadata=zero_or_more)

    @property
    def source(self) -> Source:
        return _worst(self.outstanding, self.end_s, self.store_bytes_per_s, self.load_bytes_per_s)

    def semantics(
        self, nbytes: int, path_s: float, access: Access = "store", memory_s: float = 0.0, sharers: int = 0
    ) -> Semantics:
        """What `nbytes` by loads or stores cost beside a path of `path_s` one way and a memory that takes `memory_s`.

        A load's request has to go there first; a store is posted. A store to lines that `sharers` others hold waits for
        their invalidation, which a directory does at once for all and for line after line in a pipeline.
        """
        round_trip_s = self.end_s.value + 2 * path_s + memory_s
        before_s = self.end_s.value + (path_s if access == "load" else 0.0)
        if sharers and access == "store":
            if self.coherence == "none":
                raise BadInput(f"{self.name} has no coherence in hardware: nobody invalidates what sharers hold; flush")
            before_s += round_trip_s
        cap = self.outstanding.value * self.line_bytes / round_trip_s
        flushed = self.load_bytes_per_s if access == "load" else self.store_bytes_per_s
        if flushed:
            cap = min(cap, flushed.value)
        return Semantics(
            name=f"{self.name} {access}",
            overhead_s=before_s,
            rate_cap_bytes_per_s=cap / self.framing.efficiency,
            efficiency=self.framing.efficiency,
        )


@dataclass(frozen=True)
class MessageProtocol(Checked):
    """Something is sent.

    `efficiency`, if given, is what is known of the whole, instead of what the headers leave. A message of up to
    `inline_bytes` goes along with the doorbell; a larger one is fetched, which takes `fetch_s`. `copies` counts the
    times that all bytes are copied (staged, packed, unpacked) one after the other. Not more than `window_bytes`
    are unacknowledged. `known_from_bytes` and `known_to_bytes` are as for memory protocols.
    """

    name: str = field(metadata=not_empty)
    framing: Framing
    doorbell_s: Figure
    completion_s: Figure
    note: str = ""
    efficiency: Figure | None = None
    inline_bytes: int = field(default=0, metadata=zero_or_more)
    fetch_s: Figure | None = None
    fragment_s: Figure | None = None
    fragment_bytes: int = field(default=0, metadata=zero_or_more)
    copies: int = field(default=0, metadata=zero_or_more)
    copy_bytes_per_s: Figure | None = None
    window_bytes: Figure | None = None
    known_from_bytes: int = field(default=0, metadata=zero_or_more)
    known_to_bytes: int = field(default=0, metadata=zero_or_more)

    def problems(self) -> list[Problem]:
        found = super().problems()
        if not found and self.efficiency and self.efficiency.value > 1:
            found.append((("efficiency",), f"expected at most 1, {self.efficiency.value:g} came"))
        if not found and bool(self.fragment_s) != bool(self.fragment_bytes):
            found.append(((), "fragment_s and fragment_bytes belong together; one of them is missing"))
        if not found and self.copies and not self.copy_bytes_per_s:
            found.append((("copies",), "copy_bytes_per_s is needed beside it"))
        return found

    @property
    def source(self) -> Source:
        return _worst(
            self.doorbell_s, self.completion_s, self.efficiency, self.fetch_s, self.fragment_s, self.copy_bytes_per_s,
            self.window_bytes,
        )  # fmt: skip

    def semantics(self, nbytes: int, path_s: float, access: Access = "store") -> Semantics:
        """What a message of `nbytes` costs beside a path of `path_s` one way, until the receiver may use it.

        Stored, it is sent by who has it. To load it, who wants it has to ask: one-sided where the card fetches (an RDMA
        read; then nothing goes along with a doorbell), else by a message of its own.
        """
        fetched = self.fetch_s is not None and (access == "load" or nbytes > self.inline_bytes)
        sent_s = self.doorbell_s.value + self.completion_s.value
        overhead_s = sent_s + (self.fetch_s.value if self.fetch_s and fetched else 0.0)
        efficiency = self.efficiency.value if self.efficiency else self.framing.efficiency
        cap = float("inf")
        if self.window_bytes:
            cap = self.window_bytes.value / (overhead_s + 2 * path_s) / efficiency
        if access == "load":
            overhead_s += path_s + (0.0 if self.fetch_s else sent_s)
        return Semantics(
            name=self.name if access == "store" else f"{self.name} read",
            overhead_s=overhead_s,
            fragment_s=self.fragment_s.value if self.fragment_s else 0.0,
            fragment_bytes=self.fragment_bytes,
            copies=float(self.copies),
            copy_bytes_per_s=self.copy_bytes_per_s.value if self.copy_bytes_per_s else float("inf"),
            rate_cap_bytes_per_s=cap,
            efficiency=efficiency,
        )


@dataclass(frozen=True)
class Protocols(Checked):
    """Protocols by their semantics."""

    memory: tuple[MemoryProtocol, ...] = ()
    message: tuple[MessageProtocol, ...] = ()

    @property
    def all(self) -> dict[str, MemoryProtocol | MessageProtocol]:
        found: dict[str, MemoryProtocol | MessageProtocol] = {each.name: each for each in self.memory}
        return found | {each.name: each for each in self.message}


@cache
def protocols() -> dict[str, MemoryProtocol | MessageProtocol]:
    """The protocols that come with the package, by name."""
    path = DATA / "protocols.yaml"
    return yaml_reader.parse(Protocols, path.read_bytes(), str(path)).all


def semantics(
    protocol: MemoryProtocol | MessageProtocol,
    nbytes: int,
    path_s: float,
    access: Access = "store",
    memory_s: float = 0.0,
) -> Semantics:
    """What moving `nbytes` by a protocol costs beside its path, `path_s` one way, and the memory it is in."""
    if isinstance(protocol, MemoryProtocol):
        return protocol.semantics(nbytes, path_s, access, memory_s)
    return protocol.semantics(nbytes, path_s, access)


def beyond(protocol: MemoryProtocol | MessageProtocol, nbytes: int) -> str:
    """What to say of a size outside those that the protocol's figures were measured at; empty if there is nothing."""
    low, high = protocol.known_from_bytes, protocol.known_to_bytes
    if not high or low <= nbytes <= high:
        return ""
    return f"{protocol.name} is known at {low} to {high} bytes; {nbytes} is extrapolated"


def _worst(*figures: Figure | None) -> Source:
    return weakest(each.source for each in figures if each)
