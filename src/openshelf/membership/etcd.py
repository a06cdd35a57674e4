"""etcd as a store, by the JSON gateway that every etcd server has on its client port.

The gRPC clients would bring grpcio, whose threads do not survive a fork, into every process and keeper. The gateway
needs Python's own http.client. What is asked for is small and rare: some requests a second from each host.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from openshelf.errors import NoAgreement
from openshelf.membership.store import Is, Pair

_REQUEST_S = 2.0  # for one server
_ASK_S = 3.0  # after so long no further server is tried; the next request begins with that one
_NOT_FOUND = 5  # gRPC's code
_T = TypeVar("_T")


class Etcd:
    """Servers of one etcd cluster, as HOST:PORT. Thread-safe; a forked child has connections of its own."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers, self._first = tuple(servers), 0
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._connection: http.client.HTTPConnection | None = None
        self._news: _News | None = None

    def read(self, prefixes: Sequence[str]) -> tuple[int, dict[str, Pair]]:
        ranges = [
            {
                "request_range": {"key": _coded(prefix)}
                | ({"range_end": _coded(_end(prefix))} if _is_prefix(prefix) else {})
            }
            for prefix in prefixes
        ]

        def pairs(answer: dict[str, Any]) -> tuple[int, dict[str, Pair]]:
            found = {
                _decoded(pair["key"]): Pair(_decoded(pair.get("value", "")), int(pair["mod_revision"]))
                for one in answer["responses"]
                for pair in one["response_range"].get("kvs", ())
            }
            return int(answer["header"]["revision"]), found

        return self._ask("/v3/kv/txn", {"success": ranges}, pairs)

    def change(self, conditions: Sequence[Is], put: Mapping[str, tuple[str, int]], delete: Sequence[str] = ()) -> bool:
        compare = [
            {"key": _coded(one.key), "target": "MOD", "mod_revision": str(one.revision)}
            if one.value is None
            else {"key": _coded(one.key), "target": "VALUE", "value": _coded(one.value)}
            for one in conditions
        ]
        puts = [
            {"request_put": {"key": _coded(key), "value": _coded(value), "lease": str(lease)}}
            for key, (value, lease) in put.items()
        ]
        deletes = [{"request_delete_range": {"key": _coded(key)}} for key in delete]
        # Of a header there is no doubt: without it the answer is no server's of etcd, and the change may not be done.
        return self._ask(
            "/v3/kv/txn",
            {"compare": compare, "success": puts + deletes},
            lambda answer: bool(int(answer["header"]["revision"])) and answer.get("succeeded", False) is True,
        )

    def grant(self, seconds: int) -> int:
        return self._ask("/v3/lease/grant", {"TTL": str(seconds)}, lambda answer: int(answer["ID"]))

    def renew(self, lease: int) -> bool:
        body = {"ID": str(lease)}
        return self._ask("/v3/lease/keepalive", body, lambda answer: int(answer["result"].get("TTL", 0)) > 0)

    def revoke(self, lease: int) -> None:
        self._ask("/v3/lease/revoke", {"ID": str(lease)}, lambda _: None, gone=True)

    def wait(self, prefix: str, revision: int, timeout_s: float) -> bool:
        if self._news is None or self._news.prefix != prefix:
            self._news = _News(self._servers, prefix)
        return self._news.wait(revision, timeout_s)

    def close(self) -> None:
        """Lets go of the connections."""
        if self._connection is not None:
            self._connection.close()
        if self._news is not None:
            self._news.close()

    def _ask(self, path: str, body: dict[str, Any], take: Callable[[dict[str, Any]], _T], gone: bool = False) -> _T:
        """What `take` makes of the answer of the first server that has one. `gone`: what is not found is as good."""
        said = []
        if self._pid != os.getpid():  # the lock may be held, and the connection is the parent's
            self._lock, self._pid, self._connection = threading.Lock(), os.getpid(), None
        with self._lock:
            start = time.monotonic()
            for turn in range(len(self._servers) + 1):  # once more: a kept connection may just have ended
                if turn and time.monotonic() - start > _ASK_S:
                    break
                server = self._servers[self._first]
                try:
                    status, text = self._post(server, path, json.dumps(body))
                    answer: dict[str, Any] = json.loads(text)
                    if (status == 200 and "error" not in answer) or (gone and answer.get("code") == _NOT_FOUND):
                        return take(answer)
                    said.append(f"{server}: {status} {answer.get('message', answer.get('error', text[:200]))}")
                except (OSError, http.client.HTTPException) as error:
                    said.append(f"{server}: {error or type(error).__name__}")
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                    said.append(f"{server}: that is no answer of etcd: {text[:60]!r}")
                self._drop()
        raise NoAgreement(
            f"etcd did not answer {path}: {'; '.join(said)}. Hosts go on with what they have; nobody can join, and no "
            "name can be published, until a majority of etcd's servers is back"
        )

    def _post(self, server: str, path: str, body: str) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = _connect(server, _REQUEST_S)
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        return response.status, response.read()

    def _drop(self) -> None:
        """The next server is asked next time."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._first = (self._first + 1) % len(self._servers)


class _News:
    """Follows the changes of a prefix in a thread of its own; what it misses while it connects counts as news."""

    def __init__(self, servers: tuple[str, ...], prefix: str) -> None:
        self.prefix, self._servers = prefix, servers
        self._changed, self._revision, self._stop = threading.Condition(), 0, False
        self._connection: http.client.HTTPConnection | None = None
        threading.Thread(target=self._run, name="openshelf-etcd", daemon=True).start()

    def wait(self, revision: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._revision > revision, timeout_s)

    def close(self) -> None:
        self._stop = True
        if (connection := self._connection) is not None and connection.sock is not None:
            connection.sock.shutdown(2)

    def _run(self) -> None:
        turn = 0
        while not self._stop:
            try:
                self._follow(self._servers[turn % len(self._servers)])
            except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError):
                turn += 1  # only a hint is late: everybody looks now and then without one
            time.sleep(0.2)

    def _follow(self, server: str) -> None:
        self._connection = _connect(server, None)
        wanted = {"key": _coded(self.prefix), "range_end": _coded(_end(self.prefix))}
        self._connection.request("POST", "/v3/watch", json.dumps({"create_request": wanted}))
        response = self._connection.getresponse()
        while line := response.readline():
            result = json.loads(line)["result"]
            with self._changed:
                self._revision = max(self._revision, int(result["header"]["revision"]))
                self._changed.notify_all()


def _connect(server: str, timeout_s: float | None) -> http.client.HTTPConnection:
    host, _, port = server.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)


def _is_prefix(key: str) -> bool:
    return key.endswith("/")


def _end(prefix: str) -> str:
    """The first key after all with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _coded(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()


def _decoded(text: str) -> str:
    return base64.b64decode(text, validate=True).decode(errors="surrogateescape")  # a stranger's value need not be text
