"""Hands frames on between two network devices, each a given time after it came: a long cable for kernels without netem.

Run as a program in the namespace of the devices; ends when its standard input does.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import sys
import time

_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23  # socket options of <linux/if_packet.h>
_ALL = 0x0003


def _open(device: str) -> socket.socket:
    """A raw socket that carries the kernel's notes on each frame along, so that unsegmented ones pass whole."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    made.bind((device, 0))
    made.setsockopt(_PACKET, _VNET_HEADER, 1)
    made.setsockopt(_PACKET, _IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    made.setblocking(False)
    return made


def main(one: str, two: str, delay: float) -> None:
    ends = [_open(one), _open(two)]
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    print("ready", flush=True)
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*ends, sys.stdin], [], [], rest)
        if sys.stdin in readable:
            return
        now = time.monotonic()
        for number in (0, 1):
            if ends[number] in readable:
                try:
                    for _ in range(64):
                        waiting.append((now + delay, 1 - number, ends[number].recv(1 << 17)))
                except BlockingIOError:
                    pass
        while waiting and waiting[0][0] <= now:
            _, number, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # a full queue or a link that is down loses frames, like any other
                ends[number].send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
