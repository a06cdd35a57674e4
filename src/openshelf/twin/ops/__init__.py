"""How long operators take on accelerators: tables of measured ones, what near shapes say, and a fitted roofline."""

from openshelf.twin.ops.accelerators import Accelerator, accelerator, accelerators
from openshelf.twin.ops.kinds import KINDS, Kind, kind_of
from openshelf.twin.ops.laws import Law, fit_law, law_of
from openshelf.twin.ops.operators import HOW, Operators, OpTime, OpTimes
from openshelf.twin.ops.score import FOLDS, Left, error, fold_of, left_out
from openshelf.twin.ops.table import OpTable, read_tables, write_table

__all__ = [
    "FOLDS",
    "HOW",
    "KINDS",
    "Accelerator",
    "Kind",
    "Law",
    "Left",
    "OpTable",
    "OpTime",
    "OpTimes",
    "Operators",
    "accelerator",
    "accelerators",
    "error",
    "fit_law",
    "fold_of",
    "kind_of",
    "law_of",
    "left_out",
    "read_tables",
    "write_table",
]
