"""What a process of a group does: the same training as one process, with its part of the tables and of each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchrec.distributed.sharding_plan import column_wise, row_wise, table_wise
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from openshelf import Space
from openshelf.adapters.torchrec import TableSharder, load_checkpoint
from openshelf.tables import tables
from tests.adapters.torchrec.models import Trained
from tests.processes import State

ROWS = {"t0": table_wise(rank=1), "t1": row_wise(), "t2": table_wise(rank=0), "t3": row_wise()}
COLUMNS = {**ROWS, "t2": column_wise(ranks=[0, 1])}  # parts of a row have states of their own, if it has one number
KINDS = {"rowwise": (RowWiseAdagrad, ROWS), "sgd": (torch.optim.SGD, COLUMNS)}


def join(state: State, rank: int, size: int, store: str, space: str) -> None:
    """`space`: a name, which all processes share, or the URL of one over hosts."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    state["space"] = Space.open(space)


def train(state: State, begin: str, kind: str, steps: int) -> tuple[list[float], list[str]]:
    """The losses of each step from the weights of a file, and the tables that the space has."""
    optimizer, each = KINDS[kind]
    made = state["model"] = Trained(TableSharder(state["space"], folder=f"{kind}/"), optimizer, each=each)
    made.model.load_state_dict(torch.load(begin))
    dist.barrier()
    return made.steps(steps), tables(state["space"])


def save(state: State, path: str, steps: int) -> list[float]:
    """A checkpoint, and the losses of the steps after it."""
    made: Trained = state["model"]
    dcp.save(made.state(), checkpoint_id=path)
    return made.steps(steps, first=200)


def load(state: State, path: str, steps: int) -> list[float]:
    made: Trained = state["model"]
    given: dict[str, Any] = made.state()
    load_checkpoint(given, Path(path))
    made.model.load_state_dict(given["model"])
    made.model.fused_optimizer.load_state_dict(given["optimizer"])
    return made.steps(steps, first=200)


def refuse(state: State, path: str) -> str:
    """What is said of a checkpoint that lacks something."""
    try:
        load_checkpoint(state["model"].state(), Path(path))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def leave(state: State) -> None:
    state.clear()
    dist.destroy_process_group()
