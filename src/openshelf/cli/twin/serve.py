"""openshelf twin serve: what a pool of which size would bring a trace, or how settings of serving compare."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf.cli._arguments import add_files, add_json, output_file
from openshelf.errors import BadInput
from openshelf.space import parse_size

if TYPE_CHECKING:
    from openshelf.twin.serve import Outcome, Point, Requests, Scenario

_DESCRIPTION = """\
Serves a trace in virtual time. With one setting: a curve over pool sizes, with hit rate, time to the first token,
throughput and bytes by tier. With several (values by commas): a comparison. All figures are simulated."""
_EPILOG = """\
examples:
  openshelf twin serve --trace mine.jsonl --model config.json --fabric dgx-h100-ib --tensor 8 --dtype fp8
  openshelf twin serve --trace mine.jsonl --model llama-3.1-70b --fabric dgx-h100-ib,gb200-nvl72 --tensor 4,8
  openshelf twin serve --requests 1000 --rate 20 --lengths 1024,256 --model qwen3-32b --fabric dgx-h100-ib --tensor 2,4

A trace is JSON lines or CSV with a time, input and output lengths; `hash_ids` (one for each 512 tokens of a prompt) say
what prompts have in common. A table of clients' rates (ServeGen's columns) draws arrivals; --lengths are theirs.
More: docs/serving.md."""
_SWEPT = ("fabric", "engine", "dtype", "tensor", "replicas", "decode_replicas", "routing", "clients")


def add_serve(parts: Any) -> None:
    parser = parts.add_parser(
        "serve",
        help="serve a trace: pool sizes, or settings side by side",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="requests: .jsonl or .csv")
    parser.add_argument("--requests", type=int, metavar="N", help="without a trace: draw so many")
    parser.add_argument(
        "--rate", type=float, metavar="R", help="drawn: requests a second (1); a trace: so many times as fast (1)"
    )
    parser.add_argument(
        "--burstiness", type=float, default=1.0, help="drawn: variation of the gaps; 1: Poisson (default), 0: even"
    )
    parser.add_argument(
        "--lengths",
        default="1024,256",
        metavar="IN,OUT",
        help="drawn: tokens of prompts and answers, at most; from 0.8 of it on (1024,256)",
    )
    add_files(parser, "--model", required=True, metavar="MODEL", help="a config.json of transformers, or a known name")
    add_files(parser, "--fabric", required=True, metavar="FABRIC", help="a preset or a YAML file; several by commas")
    parser.add_argument("--engine", default="vllm", help="vllm (default), sglang, trtllm; several by commas")
    parser.add_argument(
        "--dtype", default="bfloat16", help="of weights: bfloat16 (default), fp8, nvfp4; several by commas"
    )
    parser.add_argument("--kv-dtype", default="bfloat16", help="of KV (bfloat16)")
    add_files(parser, "--table", default="", metavar="TABLE", help="measured operators: a file, or a folder of tables")
    parser.add_argument("--tensor", default="1", metavar="N", help="accelerators of a replica (1); several by commas")
    parser.add_argument(
        "--attention-replicas",
        type=int,
        default=1,
        metavar="N",
        help="data-parallel attention: so many of --tensor share the experts (1)",
    )
    parser.add_argument("--replicas", default="0", metavar="N", help="(all that fit); several by commas")
    parser.add_argument(
        "--decode-replicas", default="0", metavar="N", help="of them, those that only decode (0); several by commas"
    )
    parser.add_argument(
        "--routing", default="by_cache", help="by_cache (default), least_load, in_turn; several by commas"
    )
    parser.add_argument(
        "--clients",
        default="0",
        metavar="N",
        help="a closed loop of so many clients instead of times of arrival (0); several by commas",
    )
    parser.add_argument("--most-tokens", type=int, default=8192, metavar="N", help="of a step (8192)")
    parser.add_argument("--most-sequences", type=int, default=256, metavar="N", help="of a step (256)")
    parser.add_argument(
        "--pool", metavar="SIZES", help="sizes of the pool, by commas (0 and five up to what the trace fills)"
    )
    parser.add_argument("--per-node", type=int, default=1, metavar="N", help="so many pools instead of one for all (1)")
    parser.add_argument("--slo", metavar="TTFT,TPOT", help="seconds: also goodput, requests a second that keep both")
    parser.add_argument(
        "--search",
        metavar="FIELD=LOW..HIGH",
        help="where 99 of 100 requests cease to keep --slo: clients=1..999",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="settings simulated at once (1)")
    parser.add_argument(
        "--done",
        type=output_file,
        metavar="FILE",
        help="outcomes are added to it, and taken from it where they are there",
    )
    parser.add_argument("--csv", type=output_file, metavar="FILE", help="write the figures")
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="draw the curve")
    parser.add_argument(
        "--timeline",
        type=output_file,
        metavar="FILE",
        help="steps of the first setting, for ui.perfetto.dev, .json[.gz]",
    )
    add_json(parser)
    parser.set_defaults(run=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    from openshelf.twin.serve import Scenario, grid, pool_curve, run_scenario, sweep

    requests = _requests(args)
    axes: dict[str, list[Any]] = {name: _values(getattr(args, name), name) for name in _SWEPT}
    base = Scenario(
        axes["fabric"][0],
        args.model,
        kv_dtype=args.kv_dtype,
        attention_replicas=args.attention_replicas,
        most_tokens=args.most_tokens,
        most_sequences=args.most_sequences,
        table=args.table,
    )
    scenarios = grid(base, axes)
    slo = _slo(args.slo)
    if args.timeline:
        from openshelf.show import write_serving_trace

        write_serving_trace(run_scenario(scenarios[0], requests, record=True), args.timeline)
    if args.search:
        return _search(args, scenarios, requests, slo)
    if len(scenarios) == 1 and len(requests.ids):
        points = pool_curve(scenarios[0], requests, _sizes(args.pool, scenarios[0], requests), args.per_node)
        _tell_curve(args, scenarios[0], requests, points, slo)
        return 0
    if args.pool or args.svg:
        raise BadInput("--pool and --svg are of a curve over pool sizes: give one setting, and a trace with hash_ids")
    outcomes = list(sweep(scenarios, requests, jobs=args.jobs, done=args.done, slo=slo))
    if all(each.problem for each in outcomes):
        raise BadInput(f"nothing can be served: {outcomes[0].problem}")
    _tell_outcomes(args, requests, outcomes, [name for name in _SWEPT if len(axes[name]) > 1])
    return 0


def _search(
    args: argparse.Namespace, scenarios: list[Scenario], requests: Requests, slo: tuple[float, float] | None
) -> int:
    from openshelf.twin.serve import search

    if len(scenarios) > 1 or slo is None:
        raise BadInput("--search is of one setting, and of what --slo says: give one of each, and --slo")
    name, _, ends = args.search.partition("=")
    low, _, high = ends.partition("..")
    if not (low.isdigit() and high.isdigit()):
        raise BadInput(f"--search is {args.search!r}; expected a field and two numbers, as in clients=1..999")
    name = name.replace("-", "_")
    found = search(scenarios[0], name, int(low), int(high), requests, slo, args.done)
    if all(each.problem for each in found.tried):
        raise BadInput(f"nothing can be served: {found.tried[0].problem}")
    said = f"99 of 100 requests within {slo[0]:g} s to the first token and {slo[1]:g} s for each one after it"
    told = f"{name} {getattr(found.best.scenario, name)}" if found.best else f"nothing from {low} to {high}"
    _tell_outcomes(args, requests, found.tried, [name], [f"{told} keeps {said}"])
    return 0


def _values(text: str, name: str) -> list[Any]:
    parts = [part.strip() for part in text.split(",")]
    if name in ("fabric", "engine", "dtype", "routing"):
        return parts
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise BadInput(f"--{name.replace('_', '-')} is {text!r}; expected whole numbers by commas") from None


def _requests(args: argparse.Namespace) -> Requests:
    from openshelf.twin.serve import drawn, drawn_of_clients, is_clients, read_requests

    if (args.trace is None) == (args.requests is None):
        raise BadInput("give a --trace, or a number of --requests to draw")
    faster = 1.0 if args.rate is None else args.rate
    if args.trace is not None and not is_clients(args.trace):
        return read_requests(args.trace).faster(faster)
    try:
        longest, answer = (float(part) for part in args.lengths.split(","))
    except ValueError:
        raise BadInput(
            f"--lengths is {args.lengths!r}; expected tokens of prompts and answers, as in 1024,256"
        ) from None
    if not (1 <= longest <= 1 << 30 and 1 <= answer <= 1 << 30):
        raise BadInput(f"--lengths is {args.lengths!r}; expected numbers of tokens from 1 on")
    if args.trace is not None:
        return drawn_of_clients(args.trace, (0.8 * longest, longest), (0.8 * answer, answer)).faster(faster)
    return drawn(
        args.requests,
        faster,
        (0.8 * longest, longest),
        (0.8 * answer, answer),
        burstiness=args.burstiness,
    )


def _slo(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        first, each = (float(part) for part in text.split(","))
    except ValueError:
        raise BadInput(
            f"--slo is {text!r}; expected seconds to the first token and for each one after it, as in 2,0.05"
        ) from None
    if not (0 < first < math.inf and 0 < each < math.inf):
        raise BadInput(f"--slo is {text!r}; expected two numbers of seconds above 0")
    return first, each


def _sizes(text: str | None, scenario: Scenario, requests: Requests) -> list[int]:
    if text:
        return [parse_size(part.strip()) if part.strip() != "0" else 0 for part in text.split(",")]
    import numpy as np

    from openshelf.twin.serve import find_model

    whole = (
        len(np.unique(requests.ids)) * requests.block_tokens * find_model(scenario.model).kv_bytes(scenario.kv_dtype)
    )
    return [0, *(int(whole * share) for share in (0.01, 0.05, 0.2, 0.5, 1.0))]


def _tell_curve(
    args: argparse.Namespace,
    scenario: Scenario,
    requests: Requests,
    points: list[Point],
    slo: tuple[float, float] | None,
) -> None:
    from openshelf.cli.twin.serve_screen import print_curve
    from openshelf.twin.serve import assumed_of, shipped

    rows = [each.plain() for each in points]
    for row, point in zip(rows, points, strict=True):
        if slo:
            row["goodput_per_s"] = point.served.goodput(*slo)
    if args.csv:
        _write_csv(
            args.csv,
            [{key: value for key, value in row.items() if key != "tiers"} | _flat(row["tiers"]) for row in rows],
        )
    if args.svg:
        from openshelf.show import pool_curve_svg

        args.svg.write_text(pool_curve_svg(points))
    notes = [*requests.holes, *(f"assumed: {each}" for each in assumed_of(scenario))]
    if slo and not any(row["goodput_per_s"] for row in rows):
        notes.append(
            f"nothing meets {slo[0]:g} s to the first token and {slo[1]:g} s for each one after it: "
            "the least means are "
            f"{min(row['ttft_s'] for row in rows):.3g} s and {min(row['tpot_s'] for row in rows):.3g} s"
        )
    if args.json:
        print(json.dumps({"scenario": scenario.plain(), "errors": shipped().errors, "notes": notes, "simulated": rows}))
    else:
        print_curve(scenario, rows, notes)


def _tell_outcomes(
    args: argparse.Namespace, requests: Requests, outcomes: list[Outcome], swept: list[str], more: Sequence[str] = ()
) -> None:
    from openshelf.cli.twin.serve_screen import print_outcomes
    from openshelf.twin.serve import assumed_of, shipped

    assumed = dict.fromkeys(each for of in outcomes if not of.problem for each in assumed_of(of.scenario))
    notes = [*more, *requests.holes, *(f"assumed: {each}" for each in assumed)]
    if args.csv:
        _write_csv(
            args.csv,
            [
                {name: getattr(each.scenario, name) for name in swept} | {"problem": each.problem} | each.figures
                for each in outcomes
            ],
        )
    if args.json:
        print(
            json.dumps(
                {
                    "errors": shipped().errors,
                    "notes": notes,
                    "simulated": [each.plain() for each in outcomes],
                }
            )
        )
    else:
        print_outcomes(outcomes, swept, notes)


def _flat(tiers: dict[str, dict[str, int]]) -> dict[str, int]:
    return {f"{tier}_{name}": value for tier, each in tiers.items() for name, value in each.items()}


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
