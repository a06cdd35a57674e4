"""Public figures of machines in measured tables, by the beginning of their names; and fabrics made of calibrations.

Rates are of one accelerator and direction: NVLink by generation, PCIe x16 by generation, as their makers publish them.
A machine that is not here is taken to have the rate that its fastest row shows, and switches that only forward.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from openshelf.fabric import Calibration, Fabric, Wanted, fitted

_MEMORY = {
    "capacity_bytes": 80e9, "read_bandwidth_bytes_per_s": 3e12, "write_bandwidth_bytes_per_s": 3e12, "latency_s": 3e-7,
}  # fmt: skip


@dataclass(frozen=True)
class Public:
    link_bytes_per_s: float
    reduces: bool
    card_bytes_per_s: float
    """Of the network card that each accelerator has."""
    on_a_bus: bool = False
    """Whether accelerators meet on PCIe alone."""


_KNOWN = {
    "v100": Public(150e9, False, 12.5e9),
    "a10": Public(32e9, False, 25e9, on_a_bus=True),
    "a40": Public(32e9, False, 25e9, on_a_bus=True),
    "a800": Public(200e9, False, 25e9),
    "a100_pcie": Public(32e9, False, 25e9, on_a_bus=True),
    "a100": Public(300e9, False, 25e9),
    "a30": Public(32e9, False, 25e9, on_a_bus=True),
    "l40": Public(32e9, False, 25e9, on_a_bus=True),
    "l4": Public(32e9, False, 25e9, on_a_bus=True),
    "h100_pcie": Public(64e9, False, 50e9, on_a_bus=True),
    "h100": Public(450e9, True, 50e9),
    "h200": Public(450e9, True, 50e9),
    "h800": Public(200e9, True, 50e9),
    "h20": Public(450e9, True, 50e9),
    "gh200": Public(450e9, True, 50e9),
    "b200": Public(900e9, True, 50e9),
    "b300": Public(900e9, True, 100e9),
    "gb200": Public(900e9, True, 50e9),
    "gb300": Public(900e9, True, 100e9),
    "rtx_pro_6000": Public(64e9, False, 50e9, on_a_bus=True),
    "mi300": Public(448e9, False, 50e9),
}


def public(machine: str) -> Public | None:
    """The figures of a machine, by the longest name that it begins with."""
    plain = machine.lower().removeprefix("nd_").replace(" ", "_")
    found = [name for name in _KNOWN if plain.startswith(name)]
    return _KNOWN[max(found, key=len)] if found else None


def wanted(machine: str) -> Wanted:
    """What a fit of this machine is told beforehand."""
    known = public(machine)
    return Wanted(known.link_bytes_per_s, known.reduces, on_a_bus=known.on_a_bus) if known else Wanted()


def fabric_of(
    calibration: Calibration, ranks: int, per_domain: int = 0, card_bytes_per_s: float = 50e9, between: str = "forward"
) -> Fabric:
    """So many ranks or more of a calibrated machine: on one switch, or in whole domains with a rail for each rank.

    Links have their public rates, the network is InfiniBand. With `between="reduce"` its switches add up.
    """
    made = yaml_of(calibration)
    link, card = calibration.link_bytes_per_s, card_bytes_per_s
    domains = -(-ranks // per_domain) if per_domain else 1

    def figure(value: float) -> dict[str, object]:
        return {"value": value, "source": "published", "note": "a public figure"}

    def wire(name: str, protocol: str, rate: float, latency_s: float) -> dict[str, object]:
        rates = {"bandwidth_bytes_per_s": figure(rate), "latency_s": figure(latency_s)}
        return {"name": name, "protocol": protocol, **rates}

    memory = {key: figure(value) for key, value in _MEMORY.items()}
    made |= {
        "name": calibration.name,
        "places": [{"name": "hbm", "tier": "device", **memory}],
        "wires": [wire("link", "nvlink", link, 2e-7), wire("rail", "infiniband", card, 4e-7)],
        "switches": [
            {"name": "inside", "ports": max(2, per_domain or ranks), "port_bandwidth_bytes_per_s": figure(link)},
            {
                "name": "outside", "ports": 4096, "port_bandwidth_bytes_per_s": figure(card),
                "reduces": between == "reduce",
            },
        ],
    }  # fmt: skip
    one = {"single_switch": {"endpoints": ranks, "link": "link", "switch": "inside"}}
    many = {
        "rail_optimised": {
            "nodes": domains, "per_node": per_domain, "nodes_per_unit": domains, "spines": 1, "xlink": "link",
            "xswitch": "inside", "rail_link": "rail", "up_link": "rail", "switch": "outside",
            "uplinks_per_spine": domains,
        }
    }  # fmt: skip
    made["topology"] = many if domains > 1 else one
    with TemporaryDirectory() as folder:
        path = Path(folder) / "made.yaml"
        path.write_text(json.dumps(made), encoding="utf-8")
        return Fabric.load(path)


def yaml_of(calibration: Calibration) -> dict[str, Any]:
    """The library of a calibration over the wire `link`, as it stands in a file."""
    return {"library": yaml.safe_load(fitted([calibration], wires={calibration.where: "link"}).yaml())["library"]}
