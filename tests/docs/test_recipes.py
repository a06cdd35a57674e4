"""The recipes of docs/service.md fit the schemas of those who read them. They are not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.docs.pages import ROOT

SCHEMAS = Path(__file__).with_name("schemas")


def _recipe(mark: str) -> list[Any]:
    text = (ROOT / "docs" / "service.md").read_text()
    _, _, rest = text.partition(f"<!-- {mark} -->\n```yaml\n")
    block, end, _ = rest.partition("\n```")
    assert end
    return list(yaml.safe_load_all(block))


def _schema(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return read


def _check_object(made: Any) -> None:
    kind = {"DaemonSet": "apps/v1"}.get(made["kind"], "v1")
    assert made["apiVersion"] == kind
    schema = _schema("kubernetes") | {"$ref": f"#/$defs/V1{made['kind']}"}
    jsonschema.Draft202012Validator(schema).validate(made)


def test_what_kubernetes_is_given_has_its_types() -> None:
    objects = _recipe("kubernetes")
    assert [each["kind"] for each in objects] == ["Namespace", "Secret", "DaemonSet"]
    for each in objects:
        _check_object(each)
    spec = objects[2]["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod = spec["template"]["spec"]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "template", "spec", "hostNetwork"), "yes"),
        (("spec", "template", "spec", "containers", 0, "volumeMount"), []),
        (("spec", "selector"), None),
    ],
)
def test_a_mistake_in_it_is_found(path: tuple[str | int, ...], value: object) -> None:
    made = _recipe("kubernetes")[2]
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        _check_object(made)


def test_the_compose_file_is_one() -> None:
    (made,) = _recipe("compose")
    jsonschema.Draft201909Validator(_schema("compose")).validate(made)
    keeper, program = made["services"]["keeper"], made["services"]["program"]
    assert keeper["volumes"] == program["volumes"]  # else they would not meet
    made["services"]["keeper"]["restarts"] = "always"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft201909Validator(_schema("compose")).validate(made)
