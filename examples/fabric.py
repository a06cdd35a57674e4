"""A small pod as data: what a transfer costs on it, by loads over CXL and by messages over InfiniBand."""

import tempfile
from pathlib import Path

from openshelf import Fabric

POD = """\
name: pod
include: [gb200-nvl72]
wires:
  - name: cable
    protocol: {protocol}
    bandwidth_bytes_per_s: {{value: 50e9, source: assumed, note: 400 Gb/s}}
    medium: optics-dsp
    length_m: {{value: 30, source: assumed}}
topology:
  leaf_spine: {{endpoints_per_leaf: 16, leaves: 8, spines: 4, host_link: cable, up_link: cable, leaf: quantum-2}}
"""

with tempfile.TemporaryDirectory() as folder:
    seconds = {}
    for protocol in ("cxl-3", "infiniband"):
        path = Path(folder) / f"{protocol}.yaml"
        path.write_text(POD.format(protocol=protocol))
        fabric = Fabric.load(path)
        cost = fabric.send(4096, 0, 127)  # stored, or sent, by endpoint 0
        seconds[protocol] = cost.seconds
        print(f"{protocol}: 4 KiB in {cost.seconds * 1e6:.2f} us, modelled; figures: {cost.source}")
    path.write_text(POD.format(protocol="cxl-3").replace("value: 30", "value: 3000"))
    try:
        Fabric.load(path)
    except Exception as error:
        print(str(error).rsplit("/", 1)[-1])
