"""One large simulation in a process of its own, so that its memory is its own: prints seconds and bytes as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from openshelf.fabric import LinkClass, SwitchClass
from openshelf.fabric.topologies import fat_tree
from openshelf.twin import Twin

LINK = LinkClass("400G", 50e9, 5e-7)
SWITCH = SwitchClass("128 ports", 128, 3e-7)


def main(endpoints: int, algorithm: str) -> None:
    started = time.process_time()
    made = Twin(fat_tree(endpoints, LINK, SWITCH, 3)).collective("all_reduce", 1 << 30, algorithm=algorithm)
    spent = time.process_time() - started
    # Not ru_maxrss, which begins with what the parent had at the fork.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    print(json.dumps({"cpu_s": spent, "rss": peak, "simulated_s": made.seconds, "how": made.how}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
