"""Runs the benchmarks, one after the other, and writes docs/benchmarks.md and the table of README.md from their rows.

`make benchmarks` runs all of them quickly, `make benchmarks FULL=1` as long as they like. What each one wrote stays in
build/benchmarks, with the date, so that one may be run again alone (`--only twin`), or the documents written from what
is there (`--write`). A benchmark whose needs are missing is named with the reason; so is one that fails, and then this
program fails, too. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "benchmarks"
BEGIN = "<!-- table: written by make benchmarks -->"
END = "<!-- end of table -->"
LONGEST_S = 3 * 3600.0


@dataclass(frozen=True)
class Benchmark:
    """A program beside this one. Some have an environment of their own, where their peers are."""

    name: str
    title: str
    environment: str = ""
    needs: tuple[str, ...] = ()
    made_by: str = ""

    def python(self) -> str:
        own = ROOT / self.environment / "bin" / "python"
        return str(own) if self.environment and own.exists() else sys.executable

    def missing(self) -> str:
        """The reason why it cannot run here; empty if it can."""
        for module in self.needs:
            code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
            if subprocess.run([self.python(), "-c", code]).returncode:
                return f"{module} is not installed" + (f": {self.made_by}" if self.made_by else "")
        return ""


BENCHMARKS = (
    Benchmark("space", "Space on one host"),
    Benchmark("space_peers", "Space beside other ways to share arrays", made_by="make bench-peers"),
    Benchmark("kv_peers", "KV pool, and beside other KV stores", "build/kv-peers-venv", made_by="make bench-kv-peers"),
    Benchmark("kv_ttft", "KV pool: first token with transformers", needs=("torch", "transformers")),
    Benchmark("kv_ttft_vllm", "KV pool: first token with vLLM", "build/vllm-venv", ("vllm",), "make bench-vllm"),
    Benchmark("kv_trace", "KV pool: hit rates on traces"),
    Benchmark("kv_flash", "KV pool on flash"),
    Benchmark("tiers", "Tiers"),
    Benchmark("tiers_policy", "Tiers: which units leave memory"),
    Benchmark("tables", "Tables, and beside others", "build/tables-peers-venv", ("torch",), "make bench-tables-peers"),
    Benchmark("hosts", "Several hosts, and beside other ways to move bytes", made_by="make bench-hosts-peers"),
    Benchmark("offload", "Offload, and beside other ways", "build/offload-peers-venv", ("torch",)),
    Benchmark("offload_train", "Offload: training", "build/offload-peers-venv", ("torch",)),
    Benchmark("offload_decode", "Offload: a token at a time", needs=("torch", "transformers")),
    Benchmark("offload_peak", "Offload: memory of a long prompt", needs=("torch", "transformers")),
    Benchmark("offload_predict", "Offload: predictions against runs", needs=("torch", "transformers")),
    Benchmark("offload_plan", "Offload: time to plan", needs=("torch",)),
    Benchmark("offload_stream", "Offload: weights through an arena", needs=("torch",)),
    Benchmark("twin", "Twin"),
    Benchmark("twin_nccl", "Twin: measured collectives, rank counts and machines left out"),
    Benchmark("twin_collectives", "Twin: many ranks, and MoE exchanges"),
    Benchmark("workloads", "Twin: workloads against measured ones"),
)

# The table of the first page: benchmark, row, and what its ratio is. What it was measured on is the row's own case.
FIRST_PAGE = (
    ("space", "space.read", "speed of reading a shared array, divided by that of a private numpy array"),
    (
        "kv_ttft",
        "kv.ttft",
        "time to the first token of a small Llama shape, divided by that when another worker computed the beginning",
    ),
    (
        "hosts",
        "hosts.get",
        "speed of copying from another host (both on one machine), encrypted, divided by that of plain TCP",
    ),
    (
        "tiers",
        "tiers.prefetch",
        "speed of `prefetch()`, divided by that of four threads of O_DIRECT reads",
    ),
    (
        "offload",
        "offload.bound16",
        "time to run a model from an SSD, divided by that of perfect overlap of computing and reading",
    ),
    (
        "offload_train",
        "offload.train30",
        "time of a training step, divided by that of plain PyTorch, which has all the memory that it wants",
    ),
)
HEAD = ("| ratio | case | measured | our goal |", "|---|---|---|---|")

Row = dict[str, Any]
RATIO_IS = {
    "offload.peak": "less",
    "work.megatron.row": "1",
    "work.vtrain.row": "1",
    "work.vtrain1.row": "1",
    "work.mlperf.row": "1",
    "work.dualpipe": "1",
    "work.activations.case": "1",
}  # where it is not how many times as fast as the peer ours is
BETTER = {"more": "more is better", "less": "less is better", "1": "1 is best", "": ""}


def figure_is(row: Row) -> str:
    """Which way a row's figure is better, by its bar: `more`, `less`, or nothing where there is no bar."""
    bar = str(row.get("bar", "")).removeprefix("ratio ")
    return "more" if bar.startswith(">") else "less" if bar.startswith(("<", "the least")) else ""


def ratio_is(row: Row) -> str:
    if row["ratio"] is None:
        return ""
    same = row["value"] == row["ratio"] and figure_is(row)
    return RATIO_IS.get(row["id"]) or same or "more"


def short(value: float | None) -> str:
    """Three digits, without an exponent for what people read."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def figure(row: Row) -> str:
    if row["value"] is None:
        return cell(row.get("note") or "not measured")
    unit = row["unit"]
    return cell(f"{short(row['value'])}{'x' if unit == 'x' else f' {unit}' if unit else ''}")


def table(rows: list[Row]) -> list[str]:
    lines = ["| case | figure | bar | peer | ratio | A/A |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{short(row['ratio'])}x, {BETTER[ratio_is(row)]}" if row["ratio"] is not None else ""
        better = f", {BETTER[figure_is(row)]}" if row["value"] is not None and figure_is(row) and not ratio else ""
        cells = (
            f"`{row['id']}` {row['case']}", figure(row) + better, row.get("bar", ""), row["peer"], ratio,
            short(row["spread"]),
        )  # fmt: skip
        lines.append("| " + " | ".join(cell(each) for each in cells) + " |")
    return lines


def machine_of(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory']}, Linux {facts['kernel']}, Python {facts['python']}"
    )


def document(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "This page is written by `make benchmarks` (quick runs) or `make benchmarks FULL=1`. Every table",
        "names its command, machine and date. Peers run in turn with ours in the same run; what is not",
        "installed is skipped, with the reason. Nothing here was measured on a GPU.",
        "",
        "*Figure* is the measured value; a unit of x is a ratio. *Bar* is what we want it to be. *Ratio*",
        "is how many times as fast as the peer ours is, unless its row says otherwise. *A/A* is the same",
        "ratio with ours on both sides: a difference below it means nothing.",
        "[Earlier runs with all peers](benchmarks_with_peers.md) have a page of their own.",
    ]
    for benchmark in BENCHMARKS:
        result = results.get(benchmark.name)
        lines += ["", f"## {benchmark.title}", ""]
        if result is None:
            lines.append(f"`bench/{benchmark.name}.py` was not run.")
            continue
        if "skipped" in result:
            lines.append(f"`bench/{benchmark.name}.py` was skipped: {result['skipped']}.")
            continue
        how = "full" if result["full"] else "quick"
        lines += [
            f"`bench/{benchmark.name}.py`, {how}, {result['seconds']:.0f} s, on {result['date']}.",
            f"{machine_of(result['machine'])}.",
            "",
            *table(result["rows"]),
        ]
    return "\n".join([*lines, ""])


def first_page(results: dict[str, dict[str, Any]]) -> list[str]:
    """The table of README.md and the line below it; nothing if a row of it was not measured."""
    lines = [*HEAD]
    machines, dates = set(), set()
    for name, id, words in FIRST_PAGE:
        result = results.get(name, {})
        row = next((each for each in result.get("rows", []) if each["id"] == id), None)
        if row is None or row["value"] is None:
            print(f"README.md is left as it is: {id} was not measured")
            return []
        machines.add(f"{result['machine']['cpu']}, {result['machine']['cores']} cores")
        dates.add(result["date"])
        lines.append(f"| {words} | {cell(row['case'])} | {figure(row)}, {BETTER[figure_is(row)]} | {row['bar']} |")
    when = " to ".join(sorted({min(dates), max(dates)}))
    return [*lines, "", f"Measured on {' and '.join(sorted(machines))}; {when}."]


def replaced(text: str, table: list[str]) -> str:
    """A page with what is between its two markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no '{BEGIN}' and '{END}' any more")
    return "\n".join([before + BEGIN, *table, END]) + after


def run(benchmark: Benchmark, full: bool, results: Path) -> str:
    """Runs one and keeps what it wrote. Returns what failed."""
    kept = results / f"{benchmark.name}.json"
    reason = benchmark.missing()
    if reason:
        kept.write_text(json.dumps({"skipped": reason}))
        return ""
    written = results / f"{benchmark.name}.rows.json"
    command = [benchmark.python(), str(ROOT / "bench" / f"{benchmark.name}.py"), "--json", str(written)]
    started = time.monotonic()
    try:
        code = subprocess.run(command + ([] if full else ["--quick"]), timeout=LONGEST_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if code:
        kept.write_text(json.dumps({"skipped": "it failed"}))
        return f"bench/{benchmark.name}.py failed ({code})"
    made = {"date": time.strftime("%Y-%m-%d"), "full": full, "seconds": time.monotonic() - started}
    kept.write_text(json.dumps(made | json.loads(written.read_text()), indent=1))
    written.unlink()
    return ""


def write(results: Path, root: Path = ROOT) -> None:
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    (root / "docs" / "benchmarks.md").write_text(document(found))
    readme, table = root / "README.md", first_page(found)
    if table:
        readme.write_text(replaced(readme.read_text(), table))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="not --quick: about an hour")
    parser.add_argument("--only", nargs="+", choices=[each.name for each in BENCHMARKS], help="run these")
    parser.add_argument("--write", action="store_true", help="run nothing, write the documents from earlier results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for benchmark in BENCHMARKS:
        if not args.write and (args.only is None or benchmark.name in args.only):
            print(f"bench/{benchmark.name}.py", flush=True)
            failed += filter(None, [run(benchmark, args.full, args.results)])
    write(args.results)
    sys.exit("; ".join(failed) or 0)


if __name__ == "__main__":
    main()
