"""Storms by hand: `python -m tests.storm KIND --seed N --seconds S --storms COUNT`; the seeds go on from N."""

from __future__ import annotations

import argparse
import time

from tests.space.hosts.harness.cluster import close_nurseries
from tests.storm.plan import KINDS
from tests.storm.storm import storm


def main() -> None:
    parser = argparse.ArgumentParser(description="A storm, or several, of one kind.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=7.0)
    parser.add_argument("--storms", type=int, default=1)
    args = parser.parse_args()
    try:
        for seed in range(args.seed, args.seed + args.storms):
            start = time.monotonic()
            done = storm(args.kind, seed, args.seconds)
            took = time.monotonic() - start
            print(f"{args.kind} {seed}: {took:.1f} s, {done.steps}, {dict(done.done)}", flush=True)
    finally:
        close_nurseries()


if __name__ == "__main__":
    main()
