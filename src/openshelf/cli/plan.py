"""openshelf plan: how a model would run within a budget of memory, drawn, run, and compared."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf.cli._arguments import add_files, add_json, output_file
from openshelf.cli._models import Named, load_model
from openshelf.errors import BadInput
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.offload import Check, ModelPlan

_DESCRIPTION = """\
Plan to run a PyTorch model, or to train it, within a budget of memory: what is where when, how long
it takes, how much of that is waiting. Operators are timed on this machine; no weights are needed.
`plan check` runs it too, on made-up weights, and compares predicted with measured; `plan run` runs it
once, with its weights.

MODEL is one of
  a Python file    with `model` and `inputs`, each a function without arguments or a variable.
                   `inputs`: a tensor, a tuple of arguments, or a dict of keyword arguments.
                   For --train also, if you like, `optimizer(model)` (default: AdamW) and `loss(result)`
                   (default: result.loss). The file is run: it is code.
  a config.json    of a causal language model of transformers, or a folder with one; it is made
                   without weights, in the dtype that the config says. `plan run` takes those of
                   the .safetensors files beside it."""

_EPILOG = """\
examples:
  openshelf plan model.py --budget 64MiB
  openshelf plan config.json --budget 2GiB --batch 1 --length 256 --svg plan.svg --trace plan.json.gz
  openshelf plan check config.json --budget 8GiB --train
  openshelf plan run llama/ --budget 2GiB

Pictures and traces show predicted times. Traces are for ui.perfetto.dev. More: docs/offload.md."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="plan a model in less memory than it needs",
        usage="openshelf plan [run|check] MODEL --budget SIZE [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_files(
        parser, "words", nargs="+", metavar="[run|check] MODEL", help="a Python file, or a config.json of transformers"
    )
    parser.add_argument("--budget", required=True, metavar="SIZE", help="memory for the run, such as 2GiB")
    parser.add_argument("--dram", default=0, metavar="SIZE", help="host memory beside it for what is not in use")
    parser.add_argument("--train", action="store_true", help="a step of training: forward, backward, update")
    parser.add_argument("--batch", type=int, metavar="N", help="with a config: rows (default 1)")
    parser.add_argument("--length", type=int, metavar="N", help="with a config: tokens (default 128)")
    parser.add_argument("--fabric", default="local", metavar="NAME", help="the machine, for transfers (default local)")
    parser.add_argument(
        "--time-limit", type=float, default=20.0, metavar="SECONDS", help="for timing and the search (default 20)"
    )
    parser.add_argument("--explain", metavar="NAME", help="why this tensor is where it is, such as 0.weight")
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="draw memory and lanes over time")
    parser.add_argument("--trace", type=output_file, metavar="FILE", help="write a trace, .json or .json.gz")
    parser.add_argument("--weights", type=Path, metavar="PATH", help="for `plan run`: a safetensors checkpoint")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from openshelf.offload import plan as plan_of  # here: it needs torch, and a second

    verb, model = _verb_and_model(args.words)
    if args.weights is not None and verb != "run":
        raise BadInput("--weights is for `openshelf plan run MODEL`")
    named = load_model(model, train=args.train, batch=args.batch, length=args.length)
    weights = named.weights if args.weights is None else args.weights
    if isinstance(weights, Path) and not weights.exists():
        raise BadInput(f"there is no {str(weights)!r}: --weights is a .safetensors file, its index, or their folder")
    if verb == "run" and weights is None:
        raise BadInput(
            f"{model} has no weights to run with, and there is no .safetensors beside it: give --weights, or use "
            "`openshelf plan check`"
        )
    plan = plan_of(
        named.model, named.inputs, args.budget, optimizer=named.optimizer, loss=named.loss if args.train else None,
        dram=args.dram, fabric=args.fabric, time_limit=args.time_limit,
    )  # fmt: skip
    facts = _facts(plan)
    said = [str(plan)]
    if args.explain is not None:
        facts["explain"] = plan.explain(args.explain)
        said.append(facts["explain"])
    for path, write in ((args.svg, _write_svg), (args.trace, _write_trace)):
        if path is not None:
            write(plan, path)
            said.append(f"written to {path}")
    if verb == "check":
        check = plan.check()
        facts["check"] = _checked(check)
        said.append(str(check))
    if verb == "run":
        facts["run"] = _run_once(plan, named, weights)
        said.append(_ran(facts["run"], plan.plan.times.seconds))
    print(json.dumps(facts) if args.json else "\n".join(said))
    return 0


def _verb_and_model(words: list[str]) -> tuple[str, Path]:
    verb = words[0] if len(words) > 1 else "plan"
    if len(words) > 2 or verb not in ("plan", "run", "check"):
        raise BadInput(f"expected MODEL, run MODEL or check MODEL, got {' '.join(words)!r}")
    return verb, Path(words[-1])


def _facts(plan: ModelPlan) -> dict[str, Any]:
    made = plan.plan
    times = made.times
    return {
        "program": made.program.key,
        "operators": len(made.program.ops),
        "storages": len(made.program.storages),
        "given_bytes": sum(one.nbytes for one in made.program.storages if one.given and one.kind != "input"),
        "peak": plan.peak,
        "expected_peak": plan.expected_peak,
        "expected": dataclasses.asdict(plan.expects),
        "arena": made.peak,
        "outside": plan.outside,
        "dram": made.dram,
        "predicted_s": times.seconds,
        "compute_s": times.compute,
        "exposed_s": times.exposed,
        "busy_s": times.busy,
        "moved_bytes": times.moved,
        "stays_bytes": sum(made.program.storages[s].nbytes for s in made.stays),
        "how": list(made.how),
    }


def _write_svg(plan: ModelPlan, path: Path) -> None:
    from openshelf.show import plan_svg

    _write(path, lambda: path.write_text(plan_svg(plan.plan)))


def _write_trace(plan: ModelPlan, path: Path) -> None:
    from openshelf.show import write_trace

    _write(path, lambda: write_trace(plan.plan, path))


def _write(path: Path, write: Any) -> None:
    try:
        write()
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _checked(check: Check) -> dict[str, Any]:
    return {
        "predicted_s": check.predicted_s,
        "measured_s": check.measured_s,
        "error": check.error,
        "predicted_peak": check.predicted_peak,
        "measured_peak": check.measured_peak,
        "peak_error": check.peak_error,
        "moved_bytes": {name: lane.nbytes for name, lane in check.lanes.items()},
    }


def _run_once(plan: ModelPlan, named: Named, weights: Any) -> dict[str, Any]:
    from openshelf.offload import arguments_of, torch

    args, kwargs = arguments_of(named.inputs)
    with plan.load(weights) as run:
        begin = time.perf_counter()
        result = run(*args, **kwargs)
        seconds = time.perf_counter() - begin
        moved = {name: lane.nbytes for name, lane in run.lanes().items()}
    tensors = [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    return {
        "seconds": seconds,
        "moved_bytes": moved,
        "results": [one.item() if one.numel() == 1 else list(one.shape) for one in tensors],
    }


def _ran(facts: dict[str, Any], predicted_s: float) -> str:
    moved = [f"{name.replace('_', ' ')} {format_size(count)}" for name, count in facts["moved_bytes"].items() if count]
    results = ", ".join(f"shape {tuple(one)}" if isinstance(one, list) else f"{one:.6g}" for one in facts["results"])
    return (
        f"ran once, cold, in {facts['seconds']:.4f} s (predicted {predicted_s:.4f} s): {'; '.join(moved) or 'nothing'} "
        f"moved; results: {results or 'none'}"
    )
