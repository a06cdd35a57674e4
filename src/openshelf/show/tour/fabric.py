"""Chapter six: this machine and five public ones as data; loads and stores against messages on the same wires."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from openshelf.fabric import Fabric, Wires, same_wires
from openshelf.show.times import format_time
from openshelf.space import format_size

FABRICS = ("gb200-nvl72", "cloudmatrix384", "scalepool", "dgx-h100-ib", "pseudo-supernode")
SIZES = (64, 4096, 1 << 20, 64 << 20)
PROTOCOLS = ("cxl-3", "unifiedbus", "infiniband", "roce-staged", "tcp")


def _copies() -> dict[int, float]:
    """Seconds to copy so many bytes within this machine's memory: the best of a few, the pages touched before."""
    source, target = np.ones(SIZES[-1], np.uint8), np.zeros(SIZES[-1], np.uint8)
    best = {}
    for nbytes in SIZES:
        times = 1 if nbytes >= 1 << 20 else 1000
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(times):
                target[:nbytes] = source[:nbytes]
            seconds.append((time.perf_counter() - started) / times)
        best[nbytes] = min(seconds)
    return best


def fabric_chapter(console: Console) -> dict[str, Any]:
    console.rule("[bold]The hardware as data")
    copied = _copies()
    table = Table("from one end to the other", "endpoints", "by", *(format_size(nbytes) for nbytes in SIZES))
    table.add_row("this machine, memory to memory: measured", "", "copy", *(format_time(s) for s in copied.values()))
    far: dict[str, Any] = {}
    flagged: dict[str, None] = {}
    for name in FABRICS:
        fabric = Fabric.load(name)
        last = fabric.network.ranks - 1
        costs = {nbytes: fabric.send(nbytes, 0, last) for nbytes in SIZES}
        way = fabric.semantics(SIZES[-1], 0, last).name
        far[name] = {"semantics": way, "seconds": {str(nbytes): cost.seconds for nbytes, cost in costs.items()}}
        flagged |= dict.fromkeys(text for cost in costs.values() for text in cost.beyond)
        table.add_row(name, str(fabric.network.endpoints), way, *(format_time(cost.seconds) for cost in costs.values()))
    console.print(table)
    console.print(
        f"The five are [bold]modelled[/] from published and assumed figures; {len(flagged)} of their sizes are beyond "
        "what the protocols' figures are known at. `openshelf fabric show NAME` says which, with cost and watts."
    )
    wires = Wires()
    priced = {(each.protocol, each.nbytes): each for each in same_wires(PROTOCOLS, wires, sizes=SIZES)}
    same = Table(f"the same wires, {wires.bandwidth_bytes_per_s / 1e9:g} GB/s", *PROTOCOLS)
    for nbytes in SIZES:
        cells = [format_time(priced[name, nbytes].seconds) for name in PROTOCOLS]
        same.add_row(f"fetch {format_size(nbytes)}", *cells)
    console.print(same)
    ratio = priced["infiniband", 64].seconds / priced["cxl-3", 64].seconds
    console.print(
        f"The wires are equal: a load of 64 bytes asks and takes; messages ring, fetch, frame, complete: {ratio:.1f} "
        "times as long. In bulk only copies differ."
    )
    return {
        "copied_s": {str(nbytes): seconds for nbytes, seconds in copied.items()},
        "modelled": far,
        "beyond": list(flagged),
        "same_wires": [vars(each) for each in priced.values()],
    }
