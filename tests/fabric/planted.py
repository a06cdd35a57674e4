"""Fabrics with most fields of the schema, and what may be asked of them; the tests plant changes."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from openshelf.fabric import Fabric, bill, summary
from openshelf.twin import Twin

TEXT = """
format: 1
name: pod
endpoint: chip
memory_endpoint: pool
places:
  - &pool
    name: pool
    tier: cxl
    capacity_bytes: {value: 1e12, source: measured}
    read_bandwidth_bytes_per_s: {value: 20e9, source: measured}
    write_bandwidth_bytes_per_s: {value: 15e9, source: measured}
    latency_s: {value: 1e-7, source: measured}
    copy_bandwidth_bytes_per_s: {value: 9e9, source: measured}
    parallel_loads: {value: 10, source: measured}
    page_bytes: 4096
    line_bytes: 64
    loaded_latency:
      source: measured
      points: [{load_bytes_per_s: 0, latency_s: 1e-7}, {load_bytes_per_s: 15e9, latency_s: 5e-7}]
    other_pages:
      - page_bytes: 2097152
        read_bandwidth_bytes_per_s: {value: 21e9, source: measured}
        write_bandwidth_bytes_per_s: {value: 16e9, source: measured}
        latency_s: {value: 9e-8, source: measured}
        copy_bandwidth_bytes_per_s: {value: 9e9, source: measured}
        parallel_loads: {value: 12, source: measured}
  - {<<: *pool, name: hbm, tier: device, read_bandwidth_bytes_per_s: {value: 60e9, source: measured},
     write_bandwidth_bytes_per_s: {value: 50e9, source: measured}}
links:
  - name: wire
    from_place: pool
    to_place: hbm
    protocol: own-message
    bandwidth_bytes_per_s: {value: 5e9, source: measured}
    back_bandwidth_bytes_per_s: {value: 3e9, source: measured}
    lanes: 2
    medium: fibre
    length_m: {value: 10, source: measured}
  - name: given
    from_place: pool
    to_place: hbm
    protocol: own-memory
    bandwidth_bytes_per_s: {value: 4e9, source: measured}
    latency_s: {value: 1e-8, source: measured}
compute:
  - name: chip
    place: hbm
    gemm:
      - dtype: bfloat16
        rate_flop_per_s: {value: 1e15, source: measured}
        efficiency: {source: measured, points: [{work_flop: 1e8, share: 0.1}, {work_flop: 1e10, share: 0.5}]}
    power_w: {value: 700, source: measured}
    price_usd: {value: 30000, source: measured}
    failures_fit: {value: 100, source: measured}
media:
  - name: fibre
    propagation_s_per_m: {value: 5e-9, source: measured}
    rate_bit_per_s: 4e11
    reach_m: {value: 10, source: measured}
    power_w: {value: 10, source: measured}
    price_usd: {value: 500, source: measured}
    failures_fit: {value: 50, source: measured}
    end_latency_s: {value: 1e-8, source: measured}
protocols:
  memory:
    - name: own-memory
      framing: {payload_bytes: 256, overhead_bytes: 16, code_payload: 128, code_total: 130}
      line_bytes: 128
      outstanding: {value: 90, source: measured}
      end_s: {value: 2e-7, source: measured}
      coherence: none
      store_bytes_per_s: {value: 11e9, source: measured}
      load_bytes_per_s: {value: 10e9, source: measured}
      known_from_bytes: 64
      known_to_bytes: 4096
  message:
    - name: own-message
      framing: {payload_bytes: 4096, overhead_bytes: 80}
      doorbell_s: {value: 4e-7, source: measured}
      completion_s: {value: 3e-7, source: measured}
      inline_bytes: 220
      fetch_s: {value: 5e-7, source: measured}
      fragment_s: {value: 1e-8, source: measured}
      fragment_bytes: 4096
      copies: 1
      copy_bytes_per_s: {value: 50e9, source: measured}
      window_bytes: {value: 30000, source: measured}
      known_from_bytes: 32
      known_to_bytes: 32768
wires:
  - name: inside
    protocol: own-memory
    bandwidth_bytes_per_s: {value: 10e9, source: measured}
    lanes: 2
    medium: fibre
    length_m: {value: 2, source: measured}
    price_usd: {value: 90, source: measured}
  - name: between
    protocol: own-message
    bandwidth_bytes_per_s: {value: 12e9, source: measured}
    latency_s: {value: 1e-7, source: measured}
switches:
  - name: rack
    ports: 4
    port_bandwidth_bytes_per_s: {value: 13e9, source: measured}
    latency_s: {value: 2e-7, source: measured}
    power_w: {value: 100, source: measured}
    price_usd: {value: 9000, source: measured}
    failures_fit: {value: 70, source: measured}
  - name: plane
    ports: 16
    port_bandwidth_bytes_per_s: {value: 9e9, source: measured}
    latency_s: {value: 3e-7, source: measured}
topology:
  scalepool: {racks: 2, per_rack: 2, memories: 2, spines: 2, xlink: inside, xswitch: rack, cxl_link: between,
              cxl_switch: plane, memories_per_leaf: 2, uplinks_per_spine: 1, xplanes: 1, up_link: between}
"""
CIRCUITS = """
format: 1
name: light
places:
  - name: hbm
    tier: device
    capacity_bytes: {value: 1e12, source: measured}
    read_bandwidth_bytes_per_s: {value: 20e9, source: measured}
    write_bandwidth_bytes_per_s: {value: 15e9, source: measured}
    latency_s: {value: 1e-7, source: measured}
wires:
  - name: beam
    protocol: cxl-3
    bandwidth_bytes_per_s: {value: 10e9, source: measured}
    latency_s: {value: 1e-7, source: measured}
switches:
  - name: mirror
    kind: circuit
    ports: 4
    port_bandwidth_bytes_per_s: {value: 9e9, source: measured}
    reconfiguration_s: {value: 1e-3, source: measured}
topology:
  product: {dimensions: [{kind: switch, size: 4, link: beam, switch: mirror}]}
"""
WORDS = ("note", "year", "left_out", "include")  # what people read, and what only files have


def loaded(text: str) -> Any:
    """The data of the text; YAML 1.1 takes 1e12 for a word."""
    return yaml.safe_load(re.sub(r"\b(\d+)e(-?\d+)", lambda found: f"{found[1]}.0e{int(found[2]):+d}", text))


def changed(value: Any) -> Any:
    """Another number, or another word."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return max(1, value // 2 if value > 16 else value // 16) if value > 1 else 8
    if isinstance(value, float):
        return value * 0.5 if value else 1.0
    return f"{value}x"


def answers(fabric: Fabric) -> str:
    """What anybody may ask of a fabric, but for its own text."""
    network = fabric.network
    found: list[Any] = []
    twin = Twin(fabric)
    sizes = (150, 10_000_000)
    for access in ("store", "load"):
        for nbytes in sizes:
            for src, dst in ((0, 1), (0, network.endpoints - 1), (network.endpoints - 1, 0)):
                found.append(vars(fabric.send(nbytes, src, dst, access=access)))
            for ends in (("pool", "hbm"), ("hbm", "pool"), ("pool", "pool"), ("hbm", "hbm")):
                if all(name in [place.name for place in fabric.places] for name in ends):
                    found.append(vars(fabric.cost(nbytes, *ends, access=access)))
    for place in fabric.places:
        found += [vars(fabric.access(nbytes, place.name, stride)) for nbytes in sizes for stride in (64, 2048, None)]
        if place.other_pages:
            for stride in (64, None):
                found.append(vars(fabric.access(10**7, place.name, stride, page_bytes=2097152)))
        if place.loaded_latency:
            for load in (0.0, 7e9, 15e9):
                found.append(vars(fabric.access(10**6, place.name, None, load_bytes_per_s=load)))
    for compute in fabric.compute:
        found += [(gemm.dtype, gemm.seconds(work)) for gemm in compute.gemm for work in (1e7, 1e9, 1e11)]
    found.append(twin.collective("all_to_all", 1e7, algorithm="direct").plain())
    found.append(twin.applicable("all_reduce", network.ranks))
    found.append([getattr(each, "coherence", "") for each in fabric.known_protocols.values()])  # stores to shared lines
    found.append([vars(item) for item in bill(fabric).items])
    told = {key: value for key, value in summary(fabric).items() if key != "note"}
    return json.dumps([found, told], default=repr)
