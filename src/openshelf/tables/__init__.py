"""Tables: rows of numbers in a Space, looked up, pooled and updated by id. See docs/tables.md."""

from openshelf.tables.initial import Normal, Uniform
from openshelf.tables.many import bag_many, lookup_many
from openshelf.tables.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad
from openshelf.tables.table import Table

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Normal",
    "RowwiseAdagrad",
    "Table",
    "Uniform",
    "bag_many",
    "lookup_many",
]
