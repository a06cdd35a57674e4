"""Memory against message semantics on the same wires: what a transfer costs by each protocol, from 8 bytes to 1 GiB.

Bandwidth, length and switches are equal for all, so what differs is the protocol alone. A load fetches bytes; to fetch
them by messages they must be asked for: one-sided where the card does it (RDMA reads), else by a message of its own.
A store is compared with a send. The memory at the far end is counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from openshelf.errors import UnknownName
from openshelf.fabric.cost import through
from openshelf.fabric.fields import nearest
from openshelf.fabric.wiring.media import media
from openshelf.fabric.wiring.protocols import Access, MemoryProtocol, beyond, protocols, semantics

SIZES = tuple(8**n for n in range(1, 11))
"""8 bytes to 1 GiB."""
USUAL = ("cxl-3", "nvlink", "unifiedbus", "infiniband", "roce", "roce-staged", "tcp")


@dataclass(frozen=True)
class Wires:
    """What all protocols are given: raw bytes/s each way, and a way of some length through some switches."""

    bandwidth_bytes_per_s: float = 50e9
    length_m: float = 20.0
    medium: str = "optics-dsp"
    switches: int = 1
    switch_s: float = 240e-9
    memory_s: float = 100e-9

    @property
    def path_s(self) -> float:
        """One way: the length is in all in wires, each with two ends of its medium."""
        wires = self.switches + 1
        return wires * media()[self.medium].latency(self.length_m / wires).value + self.switches * self.switch_s


@dataclass(frozen=True)
class Priced:
    """One transfer by one protocol, modelled; `beyond` is not empty where it is extrapolated."""

    protocol: str
    semantics: str
    nbytes: int
    seconds: float
    beyond: str


def same_wires(
    names: tuple[str, ...] = USUAL,
    wires: Wires | None = None,
    access: Access = "load",
    sizes: tuple[int, ...] = SIZES,
    pieces: int = 1,
) -> list[Priced]:
    """Every size by every protocol; `pieces` of that size from scattered places, such as the parts of a KV block.

    The first piece takes what it takes alone, each further one the slower of what its bytes take on the wire and what
    it costs to post and complete it: nothing for lines, a doorbell, a completion and its copies for a message.
    """
    given, known = wires or Wires(), protocols()
    found = []
    for name in names:
        if name not in known:
            raise UnknownName(f"no protocol is named {name!r}; there is {', '.join(known)}{nearest(name, list(known))}")
        protocol = known[name]
        kind = "memory" if isinstance(protocol, MemoryProtocol) else "message"
        for nbytes in sizes:
            costs = semantics(protocol, nbytes, given.path_s, access, given.memory_s)
            latency_s, rate = through(nbytes, given.bandwidth_bytes_per_s, given.path_s, costs)
            if isinstance(protocol, MemoryProtocol):
                each_s = -(-nbytes // protocol.line_bytes) * protocol.line_bytes / rate
            else:
                software_s = protocol.doorbell_s.value + protocol.completion_s.value
                each_s = max(nbytes / rate, software_s + float(costs.before_s(nbytes)) - costs.overhead_s)
            seconds = latency_s + given.memory_s + nbytes / rate + (pieces - 1) * each_s
            found.append(Priced(name, kind, nbytes, seconds, beyond(protocol, nbytes)))
    return found
