"""twin.nccl: measured collectives of real machines, predicted from calibrations on other rows of the same machines.

Used by twin.py; by itself it prints every row. The data is profiling data of microsoft/vidur (MIT), read from beside
the repository, or from OPENSHELF_NCCL.
"""

from __future__ import annotations

import os
from pathlib import Path

from openshelf.fabric import compare, fit, median_error, read_measured
from side_by_side import Report, Row, arguments

PATH = Path(os.environ.get("OPENSHELF_NCCL", Path(__file__).parents[2] / "shared" / "data" / "nccl_measured.json"))


def nccl_rows(every: bool = True) -> list[Row]:
    """The bar's row, and, with `every`, one for each predicted row; none where the data is not there."""
    if not PATH.exists():
        return []
    measured = read_measured(PATH)
    rows = compare(measured, fit(measured))
    note = f"not monotone: {'; '.join(sorted({each.name for each in measured if each.falls}))}"
    case = "median absolute error within nodes, 4 MiB and more"
    made = [Row("twin.nccl", case, 100 * median_error(rows), "%", "measured", None, None, bar="<= 15", note=note)]
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
