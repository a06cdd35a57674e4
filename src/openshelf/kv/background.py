"""Calls in the background: one thread of this process for each kind, in the order of the calls.

Native code copies without the GIL, so computing goes on. A forked process starts its own threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeVar

Result = TypeVar("Result")
_threads: dict[str, ThreadPoolExecutor] = {}


def later(
    kind: Literal["match", "put", "read"], work: Callable[..., Result], *arguments: Any, **options: Any
) -> Future[Result]:
    """The future result of a call in the background."""
    thread = _threads.get(kind)
    if thread is None:
        thread = _threads.setdefault(kind, ThreadPoolExecutor(1, thread_name_prefix=f"openshelf-kv-{kind}"))
    return thread.submit(work, *arguments, **options)


os.register_at_fork(after_in_child=_threads.clear)
