"""openshelf twin train and twin search: a training step on a fabric, and the plan with the fastest one."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from openshelf.cli._arguments import add_files, add_json, output_file
from openshelf.errors import BadInput

if TYPE_CHECKING:
    from openshelf.workloads.train import Cluster, Constants, Model, Step

_DEGREES = {
    "dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert",
}  # fmt: skip
_SIMULATED = "All times are simulated; the error is that of steps that were not fitted."


def add(parts: Any) -> None:
    one = parts.add_parser("train", help="a training step on a fabric", description=f"A training step. {_SIMULATED}")
    two = parts.add_parser(
        "search", help="the fastest plan of training on a fabric", description=f"Plans of training. {_SIMULATED}"
    )
    for each in (one, two):
        add_files(each, "fabric", help="a preset or a YAML file of a fabric (openshelf fabric show)")
        each.add_argument("--model", required=True, help="a name (gpt3-175b, ...) or a transformers config.json")
        each.add_argument("--seq", type=int, metavar="TOKENS", help="the length of a sequence (the model's)")
        each.add_argument("--batch", type=int, required=True, metavar="SEQUENCES", help="the global batch")
        each.add_argument("--accelerators", type=int, metavar="N", help="how many (default: all of the fabric)")
        each.add_argument("--dtype", default="bfloat16", help="of products: bfloat16 (default), fp8 or nvfp4")
        each.add_argument("--constants", default="auto", help="auto (default) or a name: what steps were fitted to")
        each.add_argument("--no-flash", action="store_true", help="attention whose scores go through memory")
        each.add_argument("--no-overlap", action="store_true", help="communication waits for computing")
        add_json(each)
    for name, what in _DEGREES.items():
        one.add_argument(f"--{name}", type=int, default=1, metavar="N", help=f"degree of {what} parallelism (1)")
    one.add_argument("--micro-batch", type=int, default=1, metavar="N", help="sequences of a micro-batch (1)")
    one.add_argument("--schedule", choices=("1f1b", "interleaved", "dualpipe"), default="1f1b", help="of the pipeline")
    one.add_argument("--interleave", type=int, default=1, metavar="N", help="chunks of layers of each stage (1)")
    one.add_argument("--sequence-parallel", action="store_true", help="split by tp what tensor parallelism repeats")
    one.add_argument("--zero", type=int, default=0, metavar="STAGE", help="0 (default) to 3: what is sharded over dp")
    one.add_argument("--recompute", choices=("none", "selective", "full"), default="none", help="of activations")
    one.add_argument(
        "--offload", default="", metavar="KINDS", help="weights, optimizer, activations; several by commas"
    )
    one.add_argument("--timeline", type=output_file, metavar="FILE", help="write every pass of the pipeline as CSV")
    one.set_defaults(run=run_train)
    two.add_argument("--keep", type=int, default=5, metavar="N", help="how many plans to show (5)")
    two.add_argument("--offload", action="store_true", help="try offload of optimizer and activations, too")
    two.set_defaults(run=run_search)


def _setting(args: argparse.Namespace) -> tuple[Model, Cluster, Constants]:
    from openshelf.fabric import Fabric
    from openshelf.workloads.train import Cluster, constants_of, model_of

    if args.batch < 1:
        raise BadInput(f"--batch is {args.batch}; expected 1 or more sequences")
    cluster = Cluster.of(Fabric.load(args.fabric), args.accelerators)
    return model_of(args.model, args.seq), cluster, constants_of(args.constants, cluster)


def run_train(args: argparse.Namespace) -> int:
    from openshelf.workloads.train import Plan, run_events, step_of, why_not

    model, cluster, constants = _setting(args)
    degrees = {name: getattr(args, name) for name in _DEGREES}
    plan = Plan(
        **degrees, micro_batch=args.micro_batch, global_batch=args.batch, schedule=args.schedule,
        sequence_parallel=args.sequence_parallel, interleave=args.interleave, zero=args.zero, recompute=args.recompute,
        offload=tuple(filter(None, args.offload.split(","))), dtype=args.dtype, flash=not args.no_flash,
        overlap=not args.no_overlap,
    )  # fmt: skip
    step = step_of(model, plan, cluster, constants.of(plan))
    if args.timeline:
        if plan.schedule == "dualpipe":
            raise BadInput("--timeline is of 1f1b and interleaved pipelines; dualpipe has only the closed form")
        _, events = run_events(model, plan, cluster, constants.of(plan))
        lines = ["stage,pass,micro_batch,chunk,start_s,end_s"]
        lines += [f"{e.stage},{e.kind},{e.micro_batch},{e.chunk},{e.start_s:.9g},{e.end_s:.9g}" for e in events]
        args.timeline.write_text("\n".join([*lines, ""]))
    why = why_not(model, plan, cluster)
    if args.json:
        print(json.dumps(_plain(step, constants) | {"fits": not why, "why_not": why}))
        return 0
    _print_step(step, constants)
    if why:
        print(f"It does not fit: {why}.")
    return 0


def run_search(args: argparse.Namespace) -> int:
    from openshelf.workloads.train import Plan, search

    model, cluster, constants = _setting(args)
    base = Plan(dtype=args.dtype, flash=not args.no_flash, overlap=not args.no_overlap)
    offload = ((), ("optimizer",), ("optimizer", "activations")) if args.offload else ((),)
    found = search(model, cluster, constants, args.batch, base, keep=args.keep, offload=offload)
    if args.json:
        best = [_plain(step, constants) for step in found.best]
        print(json.dumps({"tried": found.tried, "too_large": found.too_large, "best": best}))
        return 0
    _print_found(found.best, constants)
    print(f"{found.tried} plans tried, {found.too_large} do not fit.")
    return 0


def _plain(step: Step, constants: Constants) -> dict[str, Any]:
    memory = {name: getattr(step.memory, name) for name in step.memory.__dataclass_fields__}
    return {
        "model": step.model.name, "cluster": step.cluster.name, "accelerator": step.cluster.accelerator.name,
        "seconds": step.seconds, "mfu": step.mfu, "error": constants.error, "constants": constants.name,
        "measured": step.plan.dtype in constants.measured.get(step.cluster.accelerator.name, ()),
        "by_cause_s": step.by_cause, "exposed_s": step.exposed_s, "memory_bytes": memory,
        "plan": {name: getattr(step.plan, name) for name in step.plan.__dataclass_fields__},
    }  # fmt: skip


def _print_step(step: Step, constants: Constants) -> None:
    from rich.table import Table

    from openshelf.cli._screen import console
    from openshelf.show import format_time
    from openshelf.space import format_size

    screen = console()
    title = f"a step of {step.model.name} on {step.cluster.count} x {step.cluster.accelerator.name} (simulated)"
    table = Table("what", "time", "share", title=title, title_justify="left")
    for name, value in sorted(step.by_cause.items(), key=lambda each: -each[1]):
        if value:
            table.add_row(name, format_time(value), f"{100 * value / step.seconds:.1f} %")
    table.add_row("step", format_time(step.seconds), f"MFU {100 * step.mfu:.1f} %")
    screen.print(table)
    held = ", ".join(
        f"{name} {format_size(int(getattr(step.memory, name)))}"
        for name in ("weights", "gradients", "optimizer", "activations", "logits")
    )
    print(
        f"memory of a device: {format_size(int(step.memory.used))} of {format_size(int(step.memory.capacity))}: {held}"
    )
    if step.memory.host:
        print(f"in host memory: {format_size(int(step.memory.host))} for each device")
    print(constants.accuracy(step.cluster, step.plan.dtype))


def _print_found(best: tuple[Step, ...], constants: Constants) -> None:
    from rich.table import Table

    from openshelf.cli._screen import console
    from openshelf.show import format_time
    from openshelf.space import format_size

    title = f"{best[0].model.name} on {best[0].cluster.count} x {best[0].cluster.accelerator.name} (simulated)"
    table = Table(
        "step", "MFU", "dp", "tp", "pp", "cp", "ep", "micro", "chunks", "recompute", "memory", "", title=title
    )
    for step in best:
        plan = step.plan
        close = step.seconds / best[0].seconds - 1 < constants.error and step is not best[0]
        cells = [plan.dp, plan.tp, plan.pp, plan.cp, plan.ep, plan.micro_batch, plan.interleave, plan.recompute]
        table.add_row(
            format_time(step.seconds), f"{100 * step.mfu:.1f} %", *map(str, cells), format_size(int(step.memory.used)),
            "no difference shown" if close else "",
        )  # fmt: skip
    console().print(table)
    print(constants.accuracy(best[0].cluster, best[0].plan.dtype))
