"""Chapter five: a model in a quarter of the memory that its weights take, by a plan; predicted and measured."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from openshelf.errors import MissingExtra
from openshelf.show.times import format_time
from openshelf.show.tour.power_cut import disk_directory
from openshelf.space import format_size

_HOW = "In a checkout, `make tour` without LIGHT=1 brings PyTorch. Then: openshelf tour --chapter offload"


def offload_chapter(console: Console) -> dict[str, Any]:
    console.rule("[bold]A model larger than its memory")
    try:
        from openshelf.show.tour.offload_run import Trial
    except MissingExtra as error:
        console.print(f"Left out: {error}", markup=False, highlight=False)
        console.print(_HOW, markup=False, highlight=False)
        return {"skipped": str(error)}
    with disk_directory() as directory, console.status("measuring the disk") as status:
        trial = Trial(directory)
        status.update("running a model in a quarter of its size")
        found: dict[str, Any] = {"bytes": trial.nbytes, "inference": trial.infer()}
        status.update("training it")
        found |= {"training": trial.train(), "directory": str(directory)}
    _print(console, found)
    return found


def _print(console: Console, found: dict[str, Any]) -> None:
    console.print(found["inference"]["report"], markup=False, highlight=False, soft_wrap=True)
    title = f"{format_size(found['bytes'])} of weights, streamed from flash, measured now on this machine"
    table = Table(title=title, title_justify="left")
    for column in ("", "memory", "moved", "predicted", "measured", "plain", "equal"):
        table.add_column(column, justify="right" if column else "left")
    for label, facts in (("run", found["inference"]), ("AdamW step", found["training"])):
        table.add_row(
            label, format_size(facts["peak"]), format_size(facts["moved_bytes"]),
            format_time(facts["predicted_s"]), format_time(facts["measured_s"]), format_time(facts["plain_s"]),
            "yes" if facts["equal"] else "NO",
        )  # fmt: skip
    console.print(table)
    console.print("Plain PyTorch has all of it in memory; for training, gradients and two states of the optimizer too.")
