"""The hardware in virtual time: collectives and task graphs on a Fabric's network, flow by flow."""

from openshelf.twin.algorithms import KINDS, NAMES, Step, steps_of
from openshelf.twin.chakra import Node, Rates, read_groups, read_trace, run_trace
from openshelf.twin.chakra_ranks import run_traces
from openshelf.twin.collective import Collective
from openshelf.twin.library import Domain, domain, reduces_inside
from openshelf.twin.load import Load
from openshelf.twin.run import Link, Run
from openshelf.twin.tasks import KINDS as TASK_KINDS
from openshelf.twin.tasks import Change, Tasks, Times
from openshelf.twin.twin import Twin

__all__ = [
    "KINDS",
    "NAMES",
    "Change",
    "Collective",
    "Domain",
    "Link",
    "Load",
    "Node",
    "Rates",
    "Run",
    "Step",
    "TASK_KINDS",
    "Tasks",
    "Times",
    "Twin",
    "domain",
    "read_groups",
    "read_trace",
    "reduces_inside",
    "run_trace",
    "run_traces",
    "steps_of",
]
