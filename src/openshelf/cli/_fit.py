"""How `openshelf fabric fit` looks: figures, then every row beside what the model says of it."""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.table import Table

from openshelf.cli._screen import console
from openshelf.show import format_time
from openshelf.space import format_size


def print_fit(found: dict[str, Any]) -> None:
    """The report of a fit, as tables."""
    screen = console()
    fitted = Table("calibrated", "link", "send", "send rate", "launch", "step", "ring rate", "sizes")
    for each in found["calibrations"]:
        rates = [f"{each[key] / 1e9:.4g} GB/s" for key in ("send_bytes_per_s", "ring_bytes_per_s")]
        sizes = f"{format_size(each['smallest'])} to {format_size(each['largest'])}"
        fitted.add_row(
            each["machine"], f"{each['where']} nodes", format_time(each["send_s"]), rates[0],
            format_time(each["launch_s"]), format_time(each["step_s"]), rates[1], sizes,
        )  # fmt: skip
    screen.print(fitted)
    rows = Table("series", "bytes", "measured", "model", "error", "use", "flags")
    for row in found["rows"]:
        rows.add_row(
            row["series"], format_size(row["nbytes"]), format_time(row["measured_s"]), format_time(row["modelled_s"]),
            f"{row['error']:+.1%}", row["use"], "; ".join(row["flags"]),
        )  # fmt: skip
    screen.print(rows)
    for each in found["calibrations"]:
        for note in each["notes"]:
            screen.print(f"note: {each['machine']} {each['where']} nodes: {note}", markup=False, highlight=False)
    for name in found["left_out"]:
        screen.print(f"left out, nothing to calibrate on: {name}", markup=False, highlight=False)
    for where in ("within", "between"):
        errors = [
            abs(row["error"])
            for row in found["rows"]
            if row["use"] == "predicted" and row["where"] == where and row["nbytes"] >= 4 << 20
        ]
        if errors:
            rest = f"median absolute error {median(errors):.1%}, {len(errors)} rows"
            screen.print(f"predicted {where} nodes, 4 MiB and more: {rest}", markup=False, highlight=False)
