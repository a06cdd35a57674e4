"""Runs histories on processes of several hosts, and hands what they wrote down to the checker."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence

from tests.processes import Peer
from tests.space.hosts.coherence import history_worker as there
from tests.space.hosts.coherence.histories import Operation, Section, Violation, check_coherence, check_lock, check_word

# A plain store may still be in its processor's store buffer when the clock is read after it.
STORE_BUFFER_NS = 2000
TIMEOUT = 30.0


def begin(peers: Sequence[Sequence[Peer]], urls: Sequence[str]) -> None:
    """Lets every process open the space; the first of each host makes what lives there."""
    for host, url in enumerate(urls):
        for number, peer in enumerate(peers[host]):
            peer.call(there.begin, url, host, number == 0)
    everybody = [peer for host in peers for peer in host]
    for peer in everybody:
        peer.start(there.meet, len(urls))
    for peer in everybody:
        peer.finish(TIMEOUT)


def run(peers: Sequence[Peer], seed: int, history: int, hosts: int, steps: int) -> int:
    """One history; returns the number of its operations, raises Violation."""
    moment = time.monotonic_ns() + 3_000_000
    for number, peer in enumerate(peers):
        peer.start(there.act, number, seed, history, hosts, steps, moment)
    answers = [peer.finish(TIMEOUT) for peer in peers]
    words: dict[there.Word, list[Operation]] = defaultdict(list)
    sections, refused, count = [], [], 0
    for number, (events, held, attempts) in enumerate(answers):
        for kind, word, argument, result, start, end in events:
            if kind == "store":
                kind, end = "write", end + STORE_BUFFER_NS
            words[word].append(Operation(number, kind, argument, result, start, end))
        sections += [Section(number, *times) for times in held]
        refused += [Operation(number, "try", None, False, *times) for times in attempts]
        count += len(events) + len(held) + len(attempts)
    told = f"history {history} of seed {seed}"
    for word, operations in words.items():
        try:
            check_word(operations)
        except Violation as error:
            raise Violation(f"{told}: word {word} {_kind_of(operations)}: {error}") from None
    try:
        check_lock(sections, refused)
    except Violation as error:
        raise Violation(f"{told}: lock: {error}") from None
    return count


def _kind_of(operations: list[Operation]) -> str:
    """How bad it is: a word that is not even coherent has seen more than a wrong order in time."""
    if all(o.kind in ("read", "write") for o in operations):
        with contextlib.suppress(Violation):
            check_coherence(operations)
            return "is coherent, but not linearizable"
        return "is not coherent"
    return "is not linearizable"
