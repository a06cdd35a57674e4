"""How long operators take on accelerators: tables of measured ones, what near shapes say, and a fitted roofline."""

from openshelf.twin.ops.accelerators import Accelerator, accelerator, accelerators
from openshelf.twin.ops.borrow import borrowed
from openshelf.twin.ops.fit import fit_laws, laws_for, write_laws
from openshelf.twin.ops.kinds import KINDS, Kind, kind_of
from openshelf.twin.ops.laws import LAWS, Law, fit_law, fit_slowness, law_of, laws_of, name_of, slower
from openshelf.twin.ops.operators import HOW, Operators, OpTime, OpTimes
from openshelf.twin.ops.score import FOLDS, Left, error, fold_of, left_out
from openshelf.twin.ops.table import OpTable, read_folder, read_tables, write_table
from openshelf.twin.ops.transformer import Transformer, name_key, read_config, transformer_of

__all__ = [
    "FOLDS",
    "HOW",
    "KINDS",
    "LAWS",
    "Accelerator",
    "Kind",
    "Law",
    "Left",
    "OpTable",
    "OpTime",
    "OpTimes",
    "Operators",
    "Transformer",
    "accelerator",
    "accelerators",
    "borrowed",
    "error",
    "fit_law",
    "fit_laws",
    "fit_slowness",
    "fold_of",
    "kind_of",
    "law_of",
    "laws_for",
    "laws_of",
    "left_out",
    "name_key",
    "name_of",
    "read_config",
    "read_folder",
    "read_tables",
    "slower",
    "transformer_of",
    "write_laws",
    "write_table",
]
