"""Which units leave a full memory? Our policy and others, simulated on traces; and Linux's page cache, measured.

Hit rates, of all uses from an empty memory on. The others are simulated twice: with every use seen, and with what a
keeper sees, uses of the units in an armed window at the end of each queue, a third of memory
(peers/tier_policies.py). Ours is the native one and only ever sees its window. MIN knows the future. `faults a miss`
is how often a use was seen, each a minor fault of the program, for each unit read from flash. Nothing here is timed.
The page cache reads the same trace, in a cgroup of the same size.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kit import page_cache
from kit.side_by_side import Report, Row, arguments
from openshelf import _core
from peers.tier_policies import ARC, LRU, MIN, S3FIFO, SIEVE, ClockPro, Frequency, Policy
from traffic import kv_replays
from traffic import tier_traces as traces

PEERS: tuple[type[Policy], ...] = (LRU, SIEVE, S3FIFO, ARC, ClockPro)
BOUNDS: tuple[type[Policy], ...] = (Frequency, MIN)
WINDOW = 3  # ours arms at most one in so many units of memory in a queue
SHARES = (5, 10, 25)  # percent of the blocks of the real trace
UNIT = 32 << 10  # of the page cache: half of ours, for half of the time


def simulate(case: traces.Case, table: Table) -> Row:
    trace, uses = case.trace.tolist(), len(case.trace)
    hits, misses, _, faults = _core.replay_tier_policy(case.units, case.room, case.trace)
    ours = hits / uses
    full = {kind.__name__: kind(case.room).hits(trace) / uses for kind in PEERS + BOUNDS}
    seen = {}
    for kind in PEERS:
        policy = kind(case.room, max(1, case.room // WINDOW))
        rate = policy.hits(trace) / uses
        seen[kind.__name__] = rate, policy.seen / (uses * (1 - rate))
    table.add_row(
        case.what, *(f"{full[kind.__name__]:.3f}" for kind in PEERS + BOUNDS),
        *(f"{rate:.3f} ({cost:.2f})" for rate, cost in seen.values()), f"{ours:.3f} ({faults / misses:.2f})",
    )  # fmt: skip
    best = max(seen, key=lambda name: seen[name][0])
    way = (ours - full["LRU"]) / (full["MIN"] - full["LRU"])
    note = (
        f"simulated; of the way from LRU to MIN, both seeing all: {way:.2f}; "
        f"faults a miss {faults / misses:.2f}; all seen: {listed(full)}"
    )
    return Row(
        f"tiers.policy_{case.id}", f"{case.what}: hit rate, {case.room:,} of {case.units:,} units in memory", ours, "",
        f"{best}, armed window", ours / seen[best][0], None, bar="ratio >= 0.97", note=note,
    )  # fmt: skip


def listed(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} {rate:.3f}" for name, rate in rates.items())


def against_kernel(case: traces.Case) -> Row:
    hits, *_ = _core.replay_tier_policy(case.units, case.room, case.trace)
    ours = hits / len(case.trace)
    kernel = page_cache.hit_rate(case.trace, case.units, UNIT, case.room * UNIT)
    lru = LRU(case.room).hits(case.trace.tolist()) / len(case.trace)
    note = page_cache.why_not() or "skipped: the reader failed"
    if kernel is not None:
        note = f"ours simulated {ours:.3f}, page cache measured {kernel:.3f}, LRU simulated {lru:.3f}"
    return Row(
        f"tiers.policy_kernel_{case.id}", f"{case.what}: hit rate, {case.room:,} of {case.units:,} units in memory",
        ours, "", "Linux page cache", ours / kernel if kernel else None, None, bar="ratio >= 1", note=note,
    )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "")
    length = 100_000 if args.quick else 300_000
    report = Report("Which units leave memory")
    table = Table(title="Hit rates, simulated: all uses seen | in an armed window (faults a miss)")
    all_seen, windows = [kind.__name__ for kind in PEERS + BOUNDS], [f"{kind.__name__} |" for kind in PEERS]
    for column in ("trace", *all_seen, *windows, "ours"):
        table.add_column(column)
    for case in (traces.zipf(length), traces.scan(length), traces.loop(length)):
        report.add(simulate(case, table))
    for share in SHARES[:1] if args.quick else SHARES:
        real = traces.mooncake(share)
        if real:
            report.add(simulate(real, table))
        else:
            id, why = f"tiers.policy_mooncake{share}", f"skipped: no {kv_replays.PATH}"
            report.add(Row(id, "Mooncake conversations", None, "", "", None, None, note=why))
    for case in (traces.zipf(100_000, 8192), traces.scan(100_000, 8192)):
        report.add(against_kernel(case))
    Console(width=200).print(table)
    report.finish(args.json)


if __name__ == "__main__":
    main()
