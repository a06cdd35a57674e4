"""Tables: rows of numbers in a Space, looked up, pooled and updated by id. See docs/tables.md.

TableBag needs torch, and is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf._dtypes import torch_module
from openshelf.tables.checkpoint import restore_table, save_table
from openshelf.tables.files import export_table, import_table
from openshelf.tables.hosts_table import HostsTable
from openshelf.tables.initial import Normal, Uniform
from openshelf.tables.inspect import describe, tables
from openshelf.tables.keyed_table import DynamicIds, KeyedTable
from openshelf.tables.many import bag_many, lookup_many
from openshelf.tables.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad
from openshelf.tables.sharding import Planned, Sharding, plan_tables
from openshelf.tables.table import Table

if TYPE_CHECKING:
    from openshelf.tables.torch_bag import TableBag

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "DynamicIds",
    "HostsTable",
    "KeyedTable",
    "Normal",
    "Planned",
    "RowwiseAdagrad",
    "Sharding",
    "Table",
    "TableBag",
    "Uniform",
    "bag_many",
    "describe",
    "export_table",
    "import_table",
    "lookup_many",
    "plan_tables",
    "restore_table",
    "save_table",
    "tables",
]


def __getattr__(name: str) -> Any:
    if name != "TableBag":
        raise AttributeError(f"module 'openshelf.tables' has no attribute {name!r}")
    torch_module()  # MissingExtra says what to install
    return import_module("openshelf.tables.torch_bag").TableBag
