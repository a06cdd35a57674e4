"""openshelf twin: collectives and traces on fabrics, in virtual time."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from openshelf.cli._arguments import add_files, add_json, output_file
from openshelf.cli.twin import ops, train
from openshelf.cli.twin.serve import add_serve
from openshelf.errors import BadInput
from openshelf.space import parse_size

if TYPE_CHECKING:
    from openshelf.twin import Change, Collective, Run, Twin

_NAME = "a preset or a YAML file of a fabric with a topology (openshelf fabric show)"
_DESCRIPTION = "Runs collectives, traces and training steps on a fabric in virtual time. All times are simulated."
_EPILOG = """\
examples:
  openshelf twin run gb200-nvl72 --collective all_reduce --size 1GiB
  openshelf twin run dgx-h100-ib --collective all_to_all --size 64MiB --ranks 64 --algorithm direct
  openshelf twin run dgx-h100-ib --et step.et --trace step.json.gz       one Chakra trace for all ranks
  openshelf twin run dgx-h100-ib --ranks 64 --fail '0>8:0@0.001-0.005' --detect 0.001
  openshelf twin compare dgx-h100-ib dgx-h100-roce scalepool --size 1MiB,1GiB
  openshelf twin train dgx-h100-ib --model llama3.1-8b --batch 256 --tp 2 --dp 128
  openshelf twin search dgx-h100-ib --model gpt3-175b --batch 512
  openshelf twin ops show h100_sxm --op gemm --shape m=4096,n=4096,k=4096
  openshelf twin serve --trace mine.jsonl --model config.json --fabric dgx-h100-ib --tensor 8 --dtype fp8

More: docs/twin.md, docs/workloads.md."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "twin",
        help="run a fabric in virtual time",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    one = parts.add_parser("run", help="a collective or a trace on one fabric", description=_DESCRIPTION)
    add_files(one, "fabric", help=_NAME)
    one.add_argument("--et", action="append", default=[], metavar="FILE",
                     help="a Chakra trace of one rank, which stands for all; several: of rank 0, 1, ...")  # fmt: skip
    one.add_argument("--groups", metavar="FILE", help="with --et: process groups, JSON lists of ranks by name")
    one.add_argument("--flops", type=float, default=0.0, metavar="FLOP_PER_S", help="for operators without a duration")
    one.add_argument("--memory-bandwidth", type=float, default=0.0, metavar="BYTES_PER_S", help="for the same")
    one.add_argument(
        "--trace", type=output_file, metavar="FILE", help="with --et: write a trace for ui.perfetto.dev, .json[.gz]"
    )
    one.add_argument("--csv", type=output_file, metavar="FILE", help="with --et: write a line for each task")
    one.add_argument("--fail", action="append", default=[], metavar="LINK@SECONDS[-SECONDS]",
                     help="a link without capacity from a moment on, until its repair: leaf-spine:5@0.001-0.01, "
                     "or 0>8:1@0.001, the second from endpoint 0 to 8")  # fmt: skip
    one.add_argument("--detect", type=float, metavar="SECONDS",
                     help="with --fail: when routers know, and take another of the equal ways (never)")  # fmt: skip
    one.set_defaults(run=run_one)
    several = parts.add_parser("compare", help="a collective on several fabrics", description=_DESCRIPTION)
    add_files(several, "fabrics", nargs="+", metavar="FABRIC", help=_NAME)
    several.set_defaults(run=run_compare)
    add_serve(parts)
    for each in (one, several):
        each.add_argument("--collective", default="all_reduce", metavar="KIND",
                          help="all_reduce (default), reduce_scatter, all_gather, all_to_all, broadcast")  # fmt: skip
        each.add_argument(
            "--size", default="64MiB", metavar="SIZES", help="bytes at each rank; several by commas (64MiB)"
        )
        each.add_argument(
            "--ranks", type=int, metavar="N", help="the first so many endpoints (default: all that compute)"
        )
        each.add_argument("--algorithm", default="best",
                          help="best (default), one among all ranks (ring, tree, direct, ...), or one a dimension: "
                          "'direct x ring'",
                          )  # fmt: skip
        each.add_argument("--chunks", type=int, default=0, metavar="N",
                          help="parts, in dimensions one behind the other (as many as are best)")  # fmt: skip
        each.add_argument("--dimension", type=int, metavar="D",
                          help="in this dimension of the network only, all groups at once")  # fmt: skip
        each.add_argument("--salt", type=int, default=0, metavar="N",
                          help="of the hash that chooses among equal ways (0)")  # fmt: skip
        each.add_argument("--access", choices=("load", "store"), default="store",
                          help="by protocols with memory semantics (store)")  # fmt: skip
        add_json(each)

    ops.add(parts)
    train.add(parts)


def run_one(args: argparse.Namespace) -> int:
    if args.et:
        _refuse(args, _OF_COLLECTIVES, "is of a collective, and a trace says its own")
        return _run_trace(args)
    _refuse(args, _OF_TRACES, "is of tasks: give a trace to run with --et")
    if args.detect is not None and not args.fail:
        raise BadInput("--detect is when routers know of a dead link: name one with --fail")
    twin = _twin(args.fabric, args.access)
    if args.fail:
        return _run_failing(twin, args)
    made = [_simulated(twin, size, args) for size in _sizes(args.size)]
    if args.json:
        print(json.dumps({"fabric": args.fabric, "simulated": [each.plain() for each in made]}))
        return 0
    from openshelf.cli.twin.screen import print_collectives

    print_collectives(args.fabric, made)
    return 0


_OF_TRACES: dict[str, Any] = {"trace": None, "csv": None, "groups": None, "flops": 0.0, "memory_bandwidth": 0.0}
_OF_COLLECTIVES: dict[str, Any] = {
    "fail": [], "detect": None, "collective": "all_reduce", "size": "64MiB", "ranks": None, "chunks": 0,
    "dimension": None, "salt": 0,
}  # fmt: skip


def _refuse(args: argparse.Namespace, defaults: dict[str, Any], why: str) -> None:
    """Raises for an option that would have no effect."""
    for name, default in defaults.items():
        if getattr(args, name) != default:
            raise BadInput(f"--{name.replace('_', '-')} {why}")


def _run_failing(healthy: Twin, args: argparse.Namespace) -> int:
    """Each collective flow by flow, with all links and while some fail; a library's law knows no links."""
    from openshelf.twin import Twin

    if args.algorithm == "library":
        raise BadInput("--fail is of flows, and 'library' is a law without any: name an algorithm, such as ring")
    twin = Twin(healthy.network, healthy.costs)
    changes = [change for text in args.fail for change in _failures(twin, text)]
    rows = []
    for each in [_simulated(twin, size, args) for size in _sizes(args.size)]:
        tasks = twin.tasks()
        twin.add(
            tasks, each.kind, each.nbytes, algorithm=each.algorithm, chunks=each.chunks, ranks=_ranks(twin, args),
            dimension=args.dimension, salt=args.salt,
        )  # fmt: skip
        healthy_s, run = twin.run(tasks).seconds, twin.run(tasks, changes, args.detect)
        rows.append({"bytes": each.nbytes, "algorithm": each.algorithm, "healthy_s": healthy_s, "seconds": run.seconds})
    if args.json:
        print(json.dumps({"fabric": args.fabric, "simulated": rows}))
        return 0
    from openshelf.cli.twin.screen import print_failing

    print_failing(args.fabric, rows)
    return 0


def _failures(twin: Twin, text: str) -> list[Change]:
    from openshelf.twin import Change

    link, _, times = text.partition("@")
    begin, _, end = times.partition("-") if "e-" not in times else (times, "", "")
    resource = twin.network.named(link)
    try:
        found = [Change(float(begin), resource, 0.0)]
        if end:
            found.append(Change(float(end), resource, float(twin.network.capacity_bytes_per_s[resource])))
    except ValueError as error:
        raise BadInput(f"--fail {text!r}: expected LINK@SECONDS or LINK@SECONDS-SECONDS, plain decimals") from error
    if len(found) > 1 and not found[0].time_s < found[1].time_s:
        raise BadInput(f"--fail {text!r}: the repair at {end} s is not after the failure at {begin} s")
    return found


def run_compare(args: argparse.Namespace) -> int:
    twins = {name: _twin(name, args.access) for name in dict.fromkeys(args.fabrics)}
    sizes = _sizes(args.size)
    made = {name: [_simulated(twin, size, args) for size in sizes] for name, twin in twins.items()}
    if args.json:
        print(json.dumps({name: [each.plain() for each in found] for name, found in made.items()}))
        return 0
    from openshelf.cli.twin.screen import print_comparison

    print_comparison(made)
    return 0


def _run_trace(args: argparse.Namespace) -> int:
    from openshelf.cli.twin.screen import print_run
    from openshelf.show import write_run_trace
    from openshelf.twin import Rates, read_groups, read_trace, run_trace, run_traces

    twin = _twin(args.fabric, args.access)
    groups = read_groups(args.groups) if args.groups else {}
    rates = Rates(args.flops, args.memory_bandwidth, args.algorithm, groups)
    traces = {rank: read_trace(file) for rank, file in enumerate(args.et)}
    outside = sum(len(node.outside) for nodes in traces.values() for node in nodes)
    if outside:
        print(f"{outside} dependencies are on nodes outside the files: taken as done", file=sys.stderr)
    run: Run
    if len(traces) > 1:
        run = run_traces(twin, traces, rates)
    else:
        run = run_trace(
            twin, traces[0], flop_per_s=rates.flop_per_s, memory_bytes_per_s=rates.memory_bytes_per_s,
            algorithm=rates.algorithm, groups=groups,
        )  # fmt: skip
    if args.trace:
        write_run_trace(run, args.trace)
    if args.csv:
        args.csv.write_text(run.csv())
    if args.json:
        print(json.dumps({"fabric": args.fabric, "simulated": run.plain()}))
    else:
        print_run(args.fabric, run)
    return 0


def _twin(name: str, access: Literal["load", "store"]) -> Twin:
    from openshelf.fabric import Fabric
    from openshelf.twin import Twin

    fabric = Fabric.load(name)
    return Twin(fabric, partial(fabric.semantics, access=access))


def _simulated(twin: Twin, size: int, args: argparse.Namespace) -> Collective:
    return twin.collective(
        args.collective, size, algorithm=args.algorithm, ranks=_ranks(twin, args), chunks=args.chunks,
        dimension=args.dimension, salt=args.salt,
    )  # fmt: skip


def _ranks(twin: Twin, args: argparse.Namespace) -> list[int] | None:
    if args.ranks is None:
        return None
    if not 2 <= args.ranks <= twin.network.ranks:
        raise BadInput(f"--ranks is {args.ranks}; {twin.network.name!r} has 2 to {twin.network.ranks}")
    return list(range(args.ranks))


def _sizes(text: str) -> list[int]:
    return [parse_size(part.strip()) for part in text.split(",")]
