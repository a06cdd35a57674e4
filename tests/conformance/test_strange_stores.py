"""A store in which somebody else has written: what no host writes is refused, and hosts go on with what they have."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from openshelf.errors import NoAgreement, OpenshelfError
from openshelf.membership import Agent, Agreed, Copied, Copy, Etcd, Kept, Owner, Spec, Table, Ticket
from openshelf.membership.store import Is, Pair
from tests.conformance.virtual_store import VirtualStore
from tests.space.hosts.harness.etcd import Servers

ROOT = "/openshelf/demo/"
SPEC = Spec("0a", 1 << 40, 1 << 30, 3)
MINE = Owner(0, "a", 4096, "x")
NOT_JSON = ("", "\0", "nonsense", "{", "[" * 100_000, "\udcff", "NaN", "null", "7", '"text"', "[]", "{}")
NOT_NUMBERS = ("", "-1", "1.5", "1e3", " 7", "+7", "007", "\u0663", "9" * 5000, str(1 << 64), "null", "{}")


class Stranger(VirtualStore):
    """Writes whatever it likes."""

    def write(self, key: str, value: str | None) -> None:
        self.revision += 1
        self._pairs.pop(ROOT + key, None)
        if value is not None:
            self._pairs[ROOT + key] = Pair(value, self.revision)

    def text(self, key: str) -> str:
        return self._pairs[ROOT + key].value


def _store() -> tuple[Stranger, Ticket]:
    """Of a space of two hosts, with a name."""
    store = Stranger()
    one = Agreed(store, "demo")
    one.make(SPEC)
    ticket = one.join("10.0.0.1:7400", "a")
    one.join("10.0.0.2:7400", "b")
    assert one.cas("weights", None, MINE, ticket) == MINE
    return store, ticket


def _altered(text: str, fields: dict[str, Any]) -> list[str]:
    """A value with each field missing, of another kind, or out of range, and one field too many."""
    found = json.loads(text)
    wrong = [json.dumps({**found, "more": 1})]
    for field, value in found.items():
        if field not in Spec._field_defaults:
            wrong.append(json.dumps({name: one for name, one in found.items() if name != field}))
        odd: tuple[Any, ...] = (True, -1, 1.5, 1 << 63, [], {}, "7") if isinstance(value, int) else (7, [], {}, False)
        wrong += [json.dumps({**found, field: one}) for one in odd]
    return wrong + [json.dumps({**found, field: one}) for field, values in fields.items() for one in values]


def _strange() -> list[tuple[str, str]]:
    """Keys, and values that no host writes there."""
    store, _ = _store()
    segment, spec = store.text("segments/1"), store.text("spec")
    hosts = ("", "h", "a b:1", "10.0.0.3", "h\n:1", "a:1,b:2", "10.0.0.1:7400", "\u00e4:1", "h:123456")
    strange = [("epoch", text) for text in NOT_NUMBERS] + [("members/1", text) for text in NOT_NUMBERS]
    strange += [("segments/1", text) for text in _altered(segment, {"host": hosts, "life": (" ", "x" * 65)})]
    strange += [(key, text) for key in ("segments/1", "spec", "names/weights") for text in NOT_JSON]
    sizes = {"base": (0, 5, 1 << 50), "reserve": (0, 3, 1 << 46), "places": (0, 1, 1 << 30), "replicas": (0, 4)}
    strange += [("spec", text) for text in _altered(spec, {**sizes, "id": ("", "xyz", "0" * 17)})]
    optional = [json.dumps({**MINE._asdict(), "before": 7}), json.dumps({**MINE._asdict(), "draft": None})]
    strange += [("names/weights", text) for text in optional]
    numbers = ("", "-1", "3", "x", "01", "1/0", "9" * 99)
    strange += [(f"members/{number}", "1") for number in numbers]
    return strange + [(f"segments/{number}", segment.replace(".2:", ".9:")) for number in numbers]


def _uses(store: Stranger, ticket: Ticket) -> list[Callable[[], Any]]:
    """All that hosts and processes ask."""
    one = Agreed(store, "demo")
    return [
        one.spec, one.view, one.epoch, lambda: one.look("weights"), lambda: one.owner("weights"),
        lambda: one.life_of(1), lambda: one.make(SPEC), lambda: one.cas("weights", MINE, MINE, ticket),
        lambda: one.leave(ticket), lambda: one.join("10.0.0.3:7400", "c"), lambda: one.join_again("10.0.0.2:7400", "b"),
    ]  # fmt: skip


def test_what_no_host_writes_is_refused_with_its_key() -> None:
    for key, value in _strange():
        refused = []
        for number in range(11):
            store, ticket = _store()
            store.write(key, value)
            try:
                _uses(store, ticket)[number]()
            except OpenshelfError as error:
                refused.append(str(error))
        assert refused, (key, value[:80])
        assert all(ROOT in text and len(text) < 1000 and text.isprintable() for text in refused), refused


def _agent(store: Stranger, ticket: Ticket, realm: int = 10) -> tuple[Agent, list[Table], list[str]]:
    followed: list[Table] = []
    said: list[str] = []
    table = Table(Agreed(store, "demo").view(), ticket)
    return Agent(Agreed(store, "demo", realm), "10.0.0.1:7400", table, followed.append, said.append), followed, said


def test_a_keeper_serves_on_whatever_a_stranger_writes() -> None:
    for key, value in _strange():
        store, ticket = _store()
        agent, followed, _ = _agent(store, ticket)
        before = store.text("epoch"), store.text("members/1")
        kept = store._pairs.get(ROOT + key)
        store.write(key, value)
        agent.step()
        assert not agent.over
        assert followed == []
        if kept is not None:  # put back: all is as before
            store._pairs[ROOT + key] = kept
            agent.step()
            assert (store.text("epoch"), store.text("members/1")) == before
            assert followed == []


@pytest.mark.parametrize("lost", ["all", "older", "another space", "places swapped", "fewer places"])
def test_a_keeper_serves_on_when_etcd_has_lost_what_it_knew(lost: str) -> None:
    store, ticket = _store()
    Agreed(store, "demo").join("10.0.0.3:7400", "c")
    agent, followed, said = _agent(store, ticket)
    if lost == "older":  # a copy that was made before the host had joined
        for key in ("segments/0", "members/0", "segments/2", "members/2"):
            store.write(key, None)
        store.write("epoch", "2")
    elif lost == "places swapped":
        first, second = store.text("segments/1"), store.text("segments/2")
        store.write("segments/1", second.replace('"term": 3', '"term": 2'))
        store.write("segments/2", first.replace('"term": 2', '"term": 3'))
    elif lost == "fewer places":
        store.write("segments/2", None)
        store.write("members/2", None)
        store.write("spec", store.text("spec").replace('"places": 3', '"places": 2'))
    else:
        for kept in (store._pairs, store._leases, store._leased):
            kept.clear()
        if lost == "another space":
            other = Agreed(store, "demo")
            other.make(SPEC._replace(id="0b"))
            for _ in range(4):
                other.join("10.0.0.9:7400", "z")
    before = dict(store._pairs)
    for _ in range(3):
        agent.step()
    assert not agent.over
    assert followed == []
    assert store._pairs == before
    assert len(said) == 1
    assert said[0].startswith("serves on with the list of epoch 3: ")


def test_a_host_of_a_lost_space_publishes_nothing_in_another_of_its_name() -> None:
    store, ticket = _store()
    names = Agreed(store, "demo", realm=10)
    assert names.cas("more", None, MINE, ticket) == MINE
    store._pairs.clear()
    other = Agreed(store, "demo")
    other.make(SPEC._replace(id="0b"))
    assert other.join("10.0.0.7:7400", "z")[:2] == ticket[:2]  # its first host has the same number and term
    with pytest.raises(NoAgreement, match="another space's"):
        names.cas("weights", None, MINE, ticket)
    assert other.owner("weights") is None


ANSWERS = (
    b"", b"<html>hello</html>", b"[]", b"7", b'"text"', b"null", b"{}", b"[" * 100_000, b'{"header": {}}', b"\xff",
    b'{"header": {"revision": "x"}, "responses": [], "succeeded": 1}', b'{"responses": [{"response_range": []}]}',
    b'{"result": [], "ID": {}}', b'{"error": "x"}', b'{"header": {"revision": "5"}, "responses": [7]}',
    b'{"header": {"revision": "5"}, "responses": [{"response_range": {"kvs": [{"key": "?", "mod_revision": "1"}]}}]}',
)  # fmt: skip


def test_a_server_that_is_no_etcd_is_as_one_that_does_not_answer() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        answer = b""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.answer)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = Etcd([f"127.0.0.1:{server.server_port}"])
        uses: list[Callable[[], Any]] = [
            lambda: store.read(["/"]), lambda: store.grant(5), lambda: store.renew(1),
            lambda: store.change([], {"k": ("v", 0)}),
        ]  # fmt: skip
        for Handler.answer in ANSWERS:
            for use in uses[: 3 if b'"5"' in Handler.answer else 4]:  # it could be a change's
                with pytest.raises(NoAgreement, match="did not answer"):
                    use()
        with pytest.raises(NoAgreement):
            Agreed(store, "demo").view()
        server.shutdown()


def test_a_value_that_is_no_text_is_read_as_it_is(etcd_servers: Servers) -> None:
    store = Etcd(etcd_servers.clients)
    assert store.change([], {"/strange": ("\udcff\udc80", 0)})
    _, found = store.read(["/strange"])
    assert found["/strange"].value == "\udcff\udc80"
    assert store.change([Is("/strange", value="\udcff\udc80")], {}, ["/strange"])
    store.close()


def test_a_name_with_copies_that_no_host_writes_is_refused() -> None:
    kept = Kept((Copy(0, "a", 1 << 40, "u"), Copy(1, "b", 1 << 41, "v")), 8, 3, 0, (2, 4), "")
    right = json.dumps(kept._asdict())
    copies = ([7], [[0, "a", 1]], [[-1, "a", 1, "u"]], [[1 << 10, "a", 1, "u"]], [[0, "a b", 1, "u"]])
    shapes = ([-1], ["2"], [True], [1] * 65, [1 << 62])
    altered = _altered(right, {"copies": copies, "shape": shapes})
    may_be = [json.dumps({**kept._asdict(), field: []}) for field in ("copies", "shape")]
    for text in (*[text for text in altered if text not in may_be], *NOT_JSON):
        store, _ = _store()
        copied = Copied(store, "demo")
        store.write("kept/weights", right)
        assert copied.found("weights").kept == copied.all_kept()["weights"] == kept
        assert copied.wanted() == {"u", "v"}
        store.write("kept/weights", text)
        for ask in (lambda: copied.found("weights"), copied.all_kept, copied.wanted):  # noqa: B023 (called in this turn)
            with pytest.raises(NoAgreement, match="kept/weights"):
                ask()


def test_copies_are_not_committed_in_another_space_of_the_name() -> None:
    store, ticket = _store()
    copied = Copied(store, "demo", realm=int(SPEC.id, 16))
    found = copied.found("weights")
    kept = Kept((Copy(0, "a", 1 << 40, "u"),), 8, 3, 0, (2, 4), "")
    store.write("spec", json.dumps({**json.loads(store.text("spec")), "id": "0b"}))
    copied.announce(["u"])
    assert not copied.commit("weights", found, kept, ["u"], ticket)
    with pytest.raises(NoAgreement, match="another space"):
        copied.found("weights")
