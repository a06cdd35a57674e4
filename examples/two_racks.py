"""A cluster of 128 accelerators before anybody buys it: two racks of UALink, joined by CXL with a pool of memory.

Everything here is simulated. Link rates are of the published standards; all else is assumed, and says so.
"""

import tempfile
from pathlib import Path

from openshelf import Fabric
from openshelf.twin import Change, Twin

RACKS = """\
name: two-racks
endpoint: accelerator
memory_endpoint: pool
places:
  - name: hbm
    tier: device
    capacity_bytes: {value: 288e9, source: assumed}
    read_bandwidth_bytes_per_s: {value: 8e12, source: assumed}
    write_bandwidth_bytes_per_s: {value: 8e12, source: assumed}
    latency_s: {value: 300e-9, source: assumed}
  - name: pool
    tier: cxl
    capacity_bytes: {value: 2e12, source: assumed}
    read_bandwidth_bytes_per_s: {value: 200e9, source: assumed}
    write_bandwidth_bytes_per_s: {value: 200e9, source: assumed}
    latency_s: {value: 150e-9, source: assumed}
compute:
  - {name: accelerator, place: hbm, power_w: {value: 1000, source: assumed}}
wires:
  - name: ualink
    protocol: ualink
    bandwidth_bytes_per_s: {value: 100e9, source: published, note: one port of four 200G lanes}
    medium: copper-dac
    length_m: {value: 1.5, source: assumed}
  - name: cxl
    protocol: cxl-3
    bandwidth_bytes_per_s: {value: 128e9, source: published, note: x16 at 64 GT/s}
    medium: copper-aec
    length_m: {value: 5, source: assumed}
switches:
  - name: cxl-switches
    note: several switches of 32 ports seen as one
    ports: 128
    port_bandwidth_bytes_per_s: {value: 128e9, source: assumed}
    latency_s: {value: 200e-9, source: assumed}
topology:
  scalepool: {racks: 2, per_rack: 64, memories: 8, spines: 32, xlink: ualink, xswitch: ualink-switch, xplanes: 8,
              cxl_link: cxl, cxl_switch: cxl-switches}
"""

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "racks.yaml"
    path.write_text(RACKS)
    fabric = Fabric.load(path)
twin = Twin(fabric)
print(f"{fabric.network.ranks} accelerators, {fabric.network.memories} memories in the pool")

pool = fabric.network.ranks  # memories are numbered after the accelerators
for who, name in ((1, "a neighbour"), (64, "the other rack"), (pool, "the pool")):
    print(f"loading 64 KiB from {name}: {fabric.send(1 << 16, who, 0, access='load').seconds * 1e6:.2f} us")

for kind in ("all_reduce", "all_to_all"):
    best = twin.collective(kind, 64 << 20)
    print(f"{kind} of 64 MiB: {best.seconds * 1e6:.0f} us by {best.algorithm}; figures: {best.source}")
one, both = (twin.collective("all_reduce", 64 << 20, ranks=range(ranks)).seconds for ranks in (64, 128))
print(f"the second rack makes an all-reduce {both / one:.1f} times as long")

# Everybody of a rack loads from the pool, while a wire on the way of the first is dead for a tenth of a millisecond.
tasks = twin.tasks()
tasks.flows([pool + rank % 8 for rank in range(64)], range(64), 4 << 20)
out = int(fabric.network.path(pool, 0)[1])
healthy, failed = twin.run(tasks), twin.run(tasks, [Change(1e-4, out, 0.0), Change(2e-4, out, 128e9)])
print(f"256 MiB from the pool: {healthy.seconds * 1e6:.0f} us, with a wire that fails {failed.seconds * 1e6:.0f} us")
