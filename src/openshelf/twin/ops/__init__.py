"""How long operators take on accelerators: tables of measured ones, what near shapes say, and a fitted roofline."""

from openshelf.twin.ops.accelerators import Accelerator, accelerator, accelerators
from openshelf.twin.ops.kinds import KINDS, Kind, kind_of
from openshelf.twin.ops.laws import Law, fit_law, law_of
from openshelf.twin.ops.operators import HOW, Operators, OpTime, OpTimes
from openshelf.twin.ops.table import OpTable, read_tables, write_table

__all__ = [
    "HOW",
    "KINDS",
    "Accelerator",
    "Kind",
    "Law",
    "OpTable",
    "OpTime",
    "OpTimes",
    "Operators",
    "accelerator",
    "accelerators",
    "fit_law",
    "kind_of",
    "law_of",
    "read_tables",
    "write_table",
]
