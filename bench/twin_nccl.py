"""twin.nccl: measured collectives of real machines, predicted from calibrations on other rows of the same machines.

All-reduces are run by the twin, as rings over a switch with the calibrated step and bandwidth, after the calibrated
launch. Used by twin.py; by itself it prints every row. The data is profiling data of microsoft/vidur (MIT), read from
beside the repository, or from where OPENSHELF_DATA says.
"""

from __future__ import annotations

from statistics import median

from kit.data import DATA
from kit.side_by_side import Report, Row, arguments
from openshelf.fabric import Calibration, LinkClass, Semantics, SwitchClass, compare, fit, read_measured
from openshelf.fabric.topologies import single_switch
from openshelf.twin import Twin

PATH = DATA / "nccl_measured.json"


def simulated(found: Calibration, nbytes: int, ranks: int, channels: int) -> float:
    """Seconds of a ring all-reduce, by the twin."""
    wire = LinkClass("calibrated", found.ring_bytes_per_s * channels)
    twin = Twin(single_switch(ranks, wire, SwitchClass("switch", ranks)), Semantics("step", overhead_s=found.step_s))
    return found.launch(nbytes) + twin.collective("all_reduce", nbytes, algorithm="ring").seconds


def nccl_rows(every: bool = True) -> list[Row]:
    """The bar's row, and, with `every`, one for each predicted row; none where the data is not there."""
    if not PATH.exists():
        return []
    measured = read_measured(PATH)
    rows = compare(measured, fit(measured), simulated)
    note = f"not monotone: {'; '.join(sorted({each.name for each in measured if each.falls}))}"
    case = "median absolute error within nodes, 4 MiB and more"
    large = [row for row in rows if row.use == "predicted" and row.where == "within" and row.nbytes >= 4 << 20]
    error = median(abs(row.error) for row in large)
    made = [Row("twin.nccl", case, 100 * error, "%", "measured", None, None, bar="<= 15", note=note)]
    for row in rows if every else ():
        if row.use == "predicted":
            case = f"{row.series}, {row.nbytes} bytes: measured {row.measured_s * 1e6:.1f} us"
            ratio, flags = row.modelled_s / row.measured_s, "; ".join(row.flags)
            made.append(Row("twin.nccl.row", case, row.modelled_s * 1e6, "us", "measured", ratio, None, note=flags))
    return made


if __name__ == "__main__":
    args = arguments(__doc__ or "")
    report = Report("measured collectives, predicted")
    for each in nccl_rows():
        report.add(each)
    report.finish(args.json)
