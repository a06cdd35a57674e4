"""Training steps in virtual time: a model, a plan and a cluster; step time, MFU, memory, and the best plan."""

from openshelf.workloads.train.cluster import Cluster, collective_s
from openshelf.workloads.train.constants import CAUSES, Constants, constants_of, every_constants, fit_constants
from openshelf.workloads.train.dualpipe import CHUNK, Chunk, overlapped
from openshelf.workloads.train.events import Event, run_events
from openshelf.workloads.train.memory import Memory, activations_of_layer, memory_of, why_not
from openshelf.workloads.train.model import MODELS, Model, from_config, gpt, model_of
from openshelf.workloads.train.plan import OFFLOADS, Plan
from openshelf.workloads.train.search import Found, search
from openshelf.workloads.train.step import Step, step_of

__all__ = [
    "CAUSES",
    "CHUNK",
    "MODELS",
    "OFFLOADS",
    "Chunk",
    "Cluster",
    "Constants",
    "Event",
    "Found",
    "Memory",
    "Model",
    "Plan",
    "Step",
    "activations_of_layer",
    "collective_s",
    "constants_of",
    "every_constants",
    "fit_constants",
    "from_config",
    "gpt",
    "memory_of",
    "model_of",
    "overlapped",
    "run_events",
    "search",
    "step_of",
    "why_not",
]
