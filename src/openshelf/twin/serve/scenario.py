"""Scenario: a model served on a fabric, by names and numbers alone; and what a fabric says of its machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from openshelf.errors import BadInput, NoRoom, UnknownName
from openshelf.fabric import Fabric
from openshelf.twin.ops import Accelerator, Law, accelerator, laws_for, read_folder, read_tables
from openshelf.twin.serve.curve import Point, PoolCosts, curve
from openshelf.twin.serve.law import ENGINES, shipped
from openshelf.twin.serve.model import BYTES, ServedModel, find_model
from openshelf.twin.serve.requests import Requests
from openshelf.twin.serve.simulate import Engine, Routing, Served, serve
from openshelf.twin.serve.times import times_of_law
from openshelf.twin.serve.work import HOPPER_LINK, Plan, work_of

_USED, _ACTIVATIONS = 0.9, 3e9
_BLOCK_TOKENS = 16
_HOST_LINK, _FLASH = 50e9, 5e9
"""Bytes per second of an accelerator's way to host memory and to flash, where a fabric does not say."""


@dataclass(frozen=True)
class Machine:
    """What serving needs of a fabric, for one accelerator. `assumed` says what the fabric does not."""

    device: Accelerator
    count: int
    link_bytes_per_s: float
    dram_bytes: float
    dram_bytes_per_s: float
    flash_bytes_per_s: float
    assumed: tuple[str, ...] = ()


@cache
def machine_of(name: str) -> Machine:
    """By a fabric's name or file."""
    fabric = Fabric.load(name)
    computes = {each.name: each for each in fabric.compute}
    compute = computes.get(fabric.endpoint) or next(iter(computes.values()), None)
    if compute is None:
        raise BadInput(f"fabric {name!r} has nothing that computes: serving needs accelerators (openshelf fabric show)")
    assumed = []
    memory = next(place for place in fabric.places if place.name == compute.place)
    try:
        device = accelerator(compute.name.lower().removeprefix("ascend-"))
        device = replace(
            device, memory_bytes=memory.capacity_bytes.value, memory_bytes_per_s=memory.read_bandwidth_bytes_per_s.value
        )
    except UnknownName:
        rates: dict[str, float] = {str(each.dtype): each.rate_flop_per_s.value for each in compute.gemm}
        if "bfloat16" not in rates:
            raise BadInput(
                f"compute {compute.name!r} of fabric {name!r} is no known accelerator and has no bfloat16 rate: "
                "add its gemm"
            ) from None
        device = Accelerator(compute.name, rates, memory.read_bandwidth_bytes_per_s.value, memory.capacity_bytes.value)
    host = [
        link.bandwidth_bytes_per_s.value
        for link in fabric.links
        if memory.name in (link.from_place, link.to_place) and link.bandwidth_bytes_per_s
    ]
    dram = next((place for place in fabric.places if place.tier == "dram"), None)
    flash = next((place for place in fabric.places if place.tier == "flash"), None)
    if not host:
        assumed.append(f"host link {_HOST_LINK / 1e9:.0f} GB/s")
    if flash is None:
        assumed.append(f"flash {_FLASH / 1e9:.0f} GB/s an accelerator")
    wires = [wire.total_bytes_per_s for wire in fabric.wires]
    if not wires:
        assumed.append(f"links between accelerators {HOPPER_LINK / 1e9:.0f} GB/s")
    reach = min(max(host, default=_HOST_LINK), dram.read_bandwidth_bytes_per_s.value if dram else _HOST_LINK)
    count = fabric.network.ranks if fabric.topology is not None else 1
    return Machine(
        device,
        count,
        max(wires, default=HOPPER_LINK),
        dram.capacity_bytes.value if dram else 0.0,
        reach,
        min(flash.read_bandwidth_bytes_per_s.value if flash else _FLASH, reach),
        tuple(assumed),
    )


@dataclass(frozen=True)
class Scenario:
    """`replicas` 0: as many as the fabric has room for. `decode_replicas`: of them, those that only decode."""

    fabric: str
    model: str
    engine: str = "vllm"
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    tensor: int = 1
    attention_replicas: int = 1
    replicas: int = 0
    decode_replicas: int = 0
    most_tokens: int = 8192
    most_sequences: int = 256
    routing: Routing = "by_cache"
    clients: int = 0
    table: str = ""
    """Measured operators of the fabric's accelerator, a file or a folder; without one the package's laws speak."""

    @property
    def plan(self) -> Plan:
        return Plan(
            self.tensor, self.attention_replicas, self.dtype, self.kv_dtype, machine_of(self.fabric).link_bytes_per_s
        )

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@cache
def table_laws(path: str, device: Accelerator) -> dict[str, dict[str, Law]]:
    """Laws of the accelerator, from tables of its operators."""
    found = Path(path)
    if not found.exists():
        raise BadInput(f"there is no table of operators at {path!r}; `openshelf twin ops import` writes one")
    return laws_for(read_folder(found) if found.is_dir() else read_tables(found), device)


def blocks_of(scenario: Scenario, model: ServedModel, machine: Machine) -> int:
    """KV blocks of a replica; raises NoRoom that says by how much weights do not fit, and what would make them."""
    plan = scenario.plan
    kv_ranks = 1 if model.latent else min(plan.tensor, model.kv_heads)
    expert = model.expert_layers * model.experts * model.expert_parameters * BYTES[model.expert_dtype or plan.dtype]
    weights = (model.weight_bytes(plan.dtype) - expert) / plan.tensor + expert / plan.accelerators
    free = _USED * machine.device.memory_bytes - _ACTIVATIONS - weights
    if free <= 0:
        remedies = [
            f"--tensor {each}"
            for each in (2, 4, 8, 16, 32)
            if each > plan.tensor
            and not model.heads % each
            and weights * plan.tensor / each < _USED * machine.device.memory_bytes - _ACTIVATIONS
        ]
        remedies += [
            f"--dtype {each}"
            for each in ("fp8", "nvfp4")
            if BYTES[each] < BYTES[plan.dtype]
            and weights * BYTES[each] / BYTES[plan.dtype] < _USED * machine.device.memory_bytes - _ACTIVATIONS
        ]
        raise NoRoom(
            f"{model.name} does not fit: weights are {weights / 1e9:.1f} GB on each {machine.device.name} "
            f"of {machine.device.memory_bytes / 1e9:.0f} GB, {-free / 1e9:.1f} GB too many; "
            f"it would fit with {' or '.join(remedies[:2]) or 'more accelerators a replica, or another machine'}"
        )
    return int(free / (model.kv_bytes(plan.kv_dtype) / kv_ranks) * plan.attention_replicas // _BLOCK_TOKENS)


def assumed_of(scenario: Scenario) -> list[str]:
    """What neither the fabric nor the accelerator says, and the simulation needs."""
    machine, model = machine_of(scenario.fabric), find_model(scenario.model)
    device, of = machine.device, [model.linear_dtype, *([model.expert_dtype] if model.experts else [])]
    dtypes = sorted({each or scenario.dtype for each in of} - {"mxfp4"})  # a format of weights everywhere
    missing = [each for each in dtypes if not device.has(each)]
    own = table_laws(scenario.table, device) if scenario.table else {}
    measured = [f"{kind} {' '.join(of)} ({sum(law.rows for law in of.values()):,} rows)" for kind, of in own.items()]
    said = (
        [f"what the table of operators does not have is as the package's laws say; it has {', '.join(measured)}"]
        if own
        else []
    )
    return [
        *machine.assumed,
        *said,
        *(
            f"{device.name} keeps weights in {each}, which it has no rate for, and computes in bfloat16"
            for each in missing
        ),
    ]


@dataclass(frozen=True)
class _Ready:
    machine: Machine
    model: ServedModel
    engine: Engine
    times: Any
    entry_s: float
    replicas: int


def _ready(scenario: Scenario) -> _Ready:
    if scenario.engine not in ENGINES:
        raise UnknownName(f"there is no engine {scenario.engine!r}; there is {', '.join(ENGINES)}")
    machine, model = machine_of(scenario.fabric), find_model(scenario.model)
    plan = scenario.plan
    plan.check(model)
    most = machine.count // plan.accelerators
    wanted = scenario.replicas or most
    if wanted < 1 or wanted > most:
        raise NoRoom(
            f"{max(wanted, 1)} replicas of {plan.accelerators} accelerators need {max(wanted, 1) * plan.accelerators}; "
            f"{scenario.fabric} has {machine.count}: "
            "give fewer replicas, or a smaller --tensor"
        )
    if not 0 <= scenario.decode_replicas < wanted:
        raise BadInput(f"{scenario.decode_replicas} of {wanted} replicas for decodes leaves none for prompts")
    laws = table_laws(scenario.table, machine.device) if scenario.table else None
    law, work = shipped(), work_of(model, machine.device, plan, laws)
    engine = Engine(
        blocks_of(scenario, model, machine), _BLOCK_TOKENS, scenario.most_tokens, scenario.most_sequences, prefixes=True
    )
    return _Ready(
        machine,
        model,
        engine,
        times_of_law(law, work, scenario.engine),
        float(law.entry(work, ENGINES.index(scenario.engine))),
        wanted,
    )


def _hand_over(ready: _Ready, scenario: Scenario) -> float:
    """Seconds in which the KV of a token moves from prompts to decodes."""
    return ready.model.kv_bytes(scenario.kv_dtype) / scenario.tensor / ready.machine.dram_bytes_per_s


def run_scenario(scenario: Scenario, requests: Requests, record: bool = False) -> Served:
    """All requests, without a pool."""
    ready = _ready(scenario)
    return serve(
        requests,
        ready.engine,
        ready.times,
        replicas=ready.replicas - scenario.decode_replicas,
        routing=scenario.routing,
        clients=scenario.clients,
        entry_s=ready.entry_s,
        decode_replicas=scenario.decode_replicas,
        hand_over_s_token=_hand_over(ready, scenario),
        record=record,
    )


def pool_curve(scenario: Scenario, requests: Requests, sizes: list[int], parts: int = 1) -> list[Point]:
    """What pools of these sizes would bring: 0 is without one.

    The first tier is the host memory of the accelerators in use.
    """
    ready = _ready(scenario)
    used = ready.replicas * scenario.plan.accelerators
    costs = PoolCosts(
        ready.model.kv_bytes(scenario.kv_dtype),
        int(ready.machine.dram_bytes * used),
        ready.machine.dram_bytes_per_s * scenario.plan.accelerators,
        ready.machine.flash_bytes_per_s * scenario.plan.accelerators,
    )
    return curve(
        requests,
        ready.engine,
        ready.times,
        sizes,
        costs,
        replicas=ready.replicas - scenario.decode_replicas,
        routing=scenario.routing,
        entry_s=ready.entry_s,
        clients=scenario.clients,
        parts=parts,
        decode_replicas=scenario.decode_replicas,
        hand_over_s_token=_hand_over(ready, scenario),
    )
