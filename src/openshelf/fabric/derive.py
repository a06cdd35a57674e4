"""Published figures that follow from others, computed here from their inputs; and measured ones the model should meet.

It is a check of the data and of the model. A figure that cannot be computed, because its inputs were not published, is
listed as such, and one that is missed by more than 15 % is listed as missed. Figures that our data were made from are
not here: they would meet themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from openshelf.fabric.fabric import Fabric
from openshelf.fabric.wiring.media import media
from openshelf.fabric.wiring.protocols import MemoryProtocol, MessageProtocol, protocols
from openshelf.fabric.wiring.wires import switches

TOLERANCE = 0.15


@dataclass(frozen=True)
class Derived:
    """A published figure, `low` to `high`, and what comes out here; None where its inputs are not known.

    It was `derived` from others by who published it, or `measured`, and then it is a check of the model.
    """

    what: str
    unit: str
    low: float
    high: float
    computed: float | None
    inputs: str
    kind: Literal["derived", "measured"] = "derived"

    @property
    def error(self) -> float | None:
        """Relative, to the nearest end of what was published; 0 inside."""
        if self.computed is None:
            return None
        nearest = min(max(self.computed, self.low), self.high)
        return self.computed / nearest - 1

    @property
    def met(self) -> bool:
        return self.error is not None and abs(self.error) <= TOLERANCE


def derived() -> list[Derived]:
    """Every derived figure that is known to us, and measured ones that the model should meet."""
    measured = [replace(each, kind="measured") for each in _measured()]
    return [*_framing(), *_latencies(), *_media(), *_switches(), *_failures(), *measured]


def _framing() -> list[Derived]:
    def share(name: str) -> float:
        framing = protocols()[name].framing
        return 100 * framing.payload_bytes / (framing.payload_bytes + framing.overhead_bytes)

    codeword, data = 544 * 10, 20 * 256  # bits: 514 symbols of 10 bits hold 20 blocks of 256 bits as 257
    return [
        _of("CXL 2 flit", "%", 94.1, share("cxl-2"), "64 of 68 B"),
        _of("CXL 3 flit", "%", 93.75, share("cxl-3"), "240 of 256 B"),
        _of("CXL 3 flit, latency-optimised", "%", 92.2, share("cxl-3-latency"), "236 of 256 B"),
        _of("RoCEv2, MTU 4096", "%", 98.0, share("roce"), "58 + 24 B of headers"),
        _of("RoCEv2, MTU 1024", "%", 92.6, share("roce-1024"), "58 + 24 B of headers"),
        _of("CXL 2 x16", "GB/s", 63, 16 * 32 / 8 * 128 / 130, "32 GT/s, 128 of 130 bits"),
        _of("CXL 3 x16", "GB/s", 121, 16 * 64 / 8 * 242 / 256, "64 GT/s, 242 of 256 B: 8 B CRC, 6 B FEC"),
        _of("KP4 FEC overhead", "%", 6.25, 100 * (codeword / data - 1), "RS(544,514) of 10-bit symbols, 257 for 256"),
        _of("KP4 FEC fill at 106 Gb/s", "ns", 51, codeword / 106.25, "one codeword at 106.25 Gb/s"),
        _of("KP4 FEC fill at 425 Gb/s", "ns", 13, codeword / 425, "one codeword at 425 Gb/s"),
    ]


def _loaded(switch: str) -> tuple[float, float]:
    """A load of a line from CXL memory behind one switch: nanoseconds, and the GB/s of all lines in flight."""
    cxl, memory_s, figure = protocols()["cxl-2"], 100e-9, switches()[switch].latency_s
    assert isinstance(cxl, MemoryProtocol)
    assert figure
    costs = cxl.semantics(64, figure.value, "load", memory_s)
    rate = costs.rate_cap_bytes_per_s * costs.efficiency
    return (costs.overhead_s + figure.value + memory_s) * 1e9, rate / 1e9


def _latencies() -> list[Derived]:
    matrix = Fabric.load("cloudmatrix384")
    near, far = (matrix.send(512, 0, target, access="load").seconds * 1e6 for target in (1, 383))
    return [
        _of("CXL load through a legacy switch", "ns", 742, _loaded("cxl-hbr")[0], "2.8 x direct"),
        _of(
            "CXL load through a port-routing switch", "ns", 482, _loaded("nvswitch-4")[0],
            "direct and a switch of memory semantics at 100 ns a pass (NVSwitch)",
        ),
        _of("the same with a low-latency controller", "ns", 349, None, "what such a controller saves is not published"),
        _of("UnifiedBus, more to another node", "us", (0, 1), far - near, "hops of 175 ns; 15 m assumed (30: 1.3)"),
        _of("fibre", "us/km", 4.9, media()["optics-dsp"].propagation_s_per_m.value * 1e9, "per metre"),
    ]  # fmt: skip


def _measured() -> list[Derived]:
    send = protocols()["infiniband"]
    assert isinstance(send, MessageProtocol)

    def sent(nbytes: int) -> float:
        costs = send.semantics(nbytes, 0.0)
        return (float(costs.before_s(nbytes)) + nbytes / send.framing.efficiency / 12.5e9) * 1e6

    latency_ns, rate = _loaded("cxl-hbr")
    matrix = Fabric.load("cloudmatrix384")
    starts = [matrix.send(64, 0, target, access="load").latency_s * 1e6 for target in (1, 383)]
    per_die = 196 * protocols()["unifiedbus"].framing.efficiency
    read = send.semantics(64, 0.0, "load").overhead_s * 1e6
    return [
        _of("CXL load through a switch, TraCT", "ns", 640, latency_ns, "2.8 x direct; its switch is a Niagara 2.0"),
        _of("CXL load through a switch, Beluga", "ns", 750, latency_ns, "2.8 x direct; at least 750 on a XC50256"),
        _of("CXL bandwidth through a switch, TraCT", "GB/s", 10.1, rate, "256 lines in flight, assumed"),
        _of("InfiniBand send of 4 KB", "us", 2.25, sent(4096), "0.83 us for 32 B, a DMA start, 100 Gb/s assumed"),
        _of("InfiniBand send of 32 KB", "us", 4.57, sent(32768), "0.83 us for 32 B, a DMA start, 100 Gb/s assumed"),
        _of("RDMA read", "us", (1.5, 3), read, "0.83 us for 32 B, a DMA start"),
        _of("UnifiedBus in a node, start", "us", 0.7, starts[0], "a load; the fit may be of stores"),
        _of("UnifiedBus in a node, a die", "GB/s", 170, per_die, "196 GB/s and framing, assumed"),
        _of("UnifiedBus across nodes, start", "us", 2.1, starts[1], "a load; the fit may be of stores"),
        _of("UnifiedBus across nodes, a die", "GB/s", 150, per_die, "196 GB/s and framing, assumed"),
    ]


def _media() -> list[Derived]:
    energy: dict[str, float | tuple[float, float]] = {
        "copper-dac": 0.13, "copper-acc": 1.9, "aoc": (12, 15), "optics-dsp": 21, "optics-dsp-1600": (16, 19),
        "optics-lpo": 10.6, "cpo-bailly": 6.8, "cpo": 4.4,
    }  # fmt: skip
    made = []
    for name, published in energy.items():
        joules = media()[name].joules_per_bit
        made.append(
            _of(f"{name}, one end", "pJ/bit", published, joules.value * 1e12 if joules else None, "power / rate")
        )
    for name, ends, published in (("copper-aec", 2, (0.56, 0.75)), ("optics-dsp-1600", 1, (0.81, 0.94))):
        price, rate = media()[name].price_usd, media()[name].rate_bit_per_s
        each = ends * price.value / (rate / 1e9) if price and rate else None
        made.append(
            _of(f"{name}, {'cable' if ends == 2 else 'module'}", "USD per Gb/s", published, each, "price / rate")
        )
    return made


def _switches() -> list[Derived]:
    def total(name: str) -> float:
        switch = switches()[name]
        return switch.ports * switch.port_bandwidth_bytes_per_s.value * 8 / 1e12

    return [
        _of("Tomahawk 5", "Tb/s", 51.2, total("tomahawk-5"), "64 x 800 Gb/s"),
        _of("Tomahawk 6", "Tb/s", 102.4, total("tomahawk-6"), "512 x 200 Gb/s"),
    ]


def _failures() -> list[Derived]:
    hours, gpus, stops = 54 * 24, 16384, 419
    of_gpus = 148 + 72 + 19 + 17 + 6 + 6  # GPU, HBM3, SRAM, processor, silent corruption, thermal
    return [
        _of("Llama 3 405B, mean time between stops", "h", 3.1, hours / stops, "419 stops in 54 days"),
        _of("job-stopping failures of a GPU with its HBM", "FIT", 12600, of_gpus / (gpus * hours) * 1e9, "268 stops"),
        _of("job-stopping failures of a NIC", "FIT", 330, 7 / (gpus * hours) * 1e9, "7 stops"),
        _of("link from NIC to ToR (HPN)", "FIT", 780, None, "counts and hours are not among our facts"),
        _of("ToR switch (HPN)", "FIT", 700, None, "counts and hours are not among our facts"),
        _of("checkpoint of 405B", "TB", 4.9, 405e9 * 12 / 1e12, "12 B a parameter"),
        _of("checkpoint of 530B at 20 Gb/s", "min", 42, 530e9 * 12 / (20e9 / 8) / 60, "12 B a parameter"),
    ]


def _of(what: str, unit: str, published: float | tuple[float, float], computed: float | None, inputs: str) -> Derived:
    low, high = published if isinstance(published, tuple) else (published, published)
    return Derived(what, unit, low, high, computed, inputs)
