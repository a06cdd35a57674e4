"""Files: what is saved is loaded again, names are found, and every mistake is named by line and column."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from openshelf.errors import BadInput, UnknownName
from openshelf.fabric import Fabric, Figure, Place, local_path, presets
from openshelf.fabric.fields import nearest
from openshelf.fabric.yaml_reader import parse

from .fabrics import chain, fabrics

SMALL = """\
name: small
places:
  - name: dram
    tier: dram
    capacity_bytes: {value: 16e9, source: assumed}
    read_bandwidth_bytes_per_s: {value: 40e9, source: assumed}
    write_bandwidth_bytes_per_s: {value: 30e9, source: assumed}
    latency_s: {value: 1e-7, source: assumed}
    loaded_latency:
      points:
        - {load_bytes_per_s: 0, latency_s: 1e-7}
        - {load_bytes_per_s: 10, latency_s: 2e-7}
      source: assumed
links:
  - name: loop
    from_place: dram
    to_place: dram
    protocol: message
    bandwidth_bytes_per_s: {value: 1e9, source: assumed}
compute:
  - name: cpu
    place: dram
"""

VALIDATOR = jsonschema.Draft202012Validator(Fabric.schema())


def load(text: str | bytes) -> Fabric:
    return parse(Fabric, text, "small.yaml")


@given(fabrics())
def test_what_is_written_is_read_back_equal(fabric: Fabric) -> None:
    assert load(fabric.yaml()) == fabric


@given(fabrics())
def test_the_schema_accepts_every_fabric_as_json_and_as_yaml(fabric: Fabric) -> None:
    VALIDATOR.validate(json.loads(json.dumps(fabric.plain())))
    VALIDATOR.validate(yaml.safe_load(fabric.yaml()))


def test_the_schema_is_itself_valid_and_refuses_what_the_reader_refuses() -> None:
    schema = Fabric.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for key, value in [("tier", "tape"), ("bandwith", 1), ("latency_s", {"value": 0, "source": "assumed"})]:
        plain = chain().plain()
        plain["places"][0][key] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(plain, schema)


def test_saving_makes_folders_and_leaves_only_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "machine.yaml"
    chain().save(path)
    chain().save(path)
    assert Fabric.load(path) == chain()
    assert [each.name for each in path.parent.iterdir()] == ["machine.yaml"]


def test_saving_where_it_is_impossible_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot write the fabric to .*file/x\.yaml"):
        chain().save(tmp_path / "file" / "x.yaml")


def test_the_small_file_used_below_is_valid() -> None:
    assert load(SMALL).places[0].capacity_bytes == Figure(16e9, "assumed")


# What is replaced in SMALL, by what, and the place and words of the error.
MISTAKES = {
    "unknown key": (
        "    tier: dram",
        "    teir: dram",
        "line 4, column 5: .*unknown key 'teir'.*mean 'tier'",
    ),
    "wrong unit": (
        "    bandwidth_bytes_per_s:",
        "    bandwidth_gbps:",
        "line 19, column 5: .*'bandwidth_gbps'.*mean 'bandwidth_bytes_per_s'.*SI units.*bytes_per_s",
    ),
    "missing key": ("    tier: dram\n", "", "line 3, column 5: .*'tier' is missing"),
    "text for a number": ("16e9", "lots", "line 5, column 29: .*value: expected a number, 'lots' came"),
    "quoted number": ("16e9", "'16e9'", "line 5, column 29: .*expected a number, the text '16e9' came"),
    "boolean": ("16e9", "true", "line 5, column 29: .*expected a number, 'true' came"),
    "negative": ("16e9", "-16e9", "line 5, column 29: .*above 0, -16000000000.0 came"),
    "zero": ("16e9", "0", "line 5, column 29: .*above 0, 0.0 came"),
    "infinite": ("16e9", "1e999", "line 5, column 29: .*finite number, inf came"),
    "not a number": ("16e9", ".nan", "line 5, column 29: .*expected a number, '.nan' came"),
    "endless digits": ("16e9", "9" * 5000, "line 5, column 29: .*expected a number"),
    "bare number": (
        "{value: 1e-7, source: assumed}",
        "1e-7",
        "line 8, column 16: .*latency_s: expected a mapping with the keys value, source; '1e-7' came",
    ),
    "fraction of a page": (
        "    tier: dram",
        "    tier: dram\n    page_bytes: 4096.5",
        "line 5, column 17: .*whole number",
    ),
    "unknown choice": ("tier: dram", "tier: dran", "line 4, column 11: .*one of device, dram.*mean 'dram'"),
    "unknown source": ("{value: 16e9, source: assumed}", "{value: 16e9, source: guess}", "line 5, column 43"),
    "null": ("name: cpu", "name:", "line 21, column 10: .*expected some text, nothing came"),
    "empty name": ("name: cpu", "name: ''", "line 21, column 11: .*expected some text, an empty one came"),
    "list for a mapping": (
        "  - name: cpu\n    place: dram",
        "  - [cpu]",
        "line 21, column 5: .*a mapping .* a list came",
    ),
    "mapping for a list": (
        "  - name: cpu\n    place: dram",
        "  name: cpu",
        "line 21, column 3: .*expected a list, a mapping came",
    ),
    "key that is a list": ("compute:", "[compute]: 1\ncompute:", "line 20, column 1: .*a list came"),
    "key given twice": ("    tier: dram", "    tier: dram\n    tier: cxl", "line 5, column 5: .*given twice"),
    "link given twice": (
        "compute:",
        "  - {name: loop, from_place: dram, to_place: dram, protocol: message, "
        "bandwidth_bytes_per_s: {value: 1, source: assumed}}\ncompute:",
        r"line 20, column 12: links\[1\].name: the name 'loop' is taken by links\[0\]",
    ),
    "dangling link": (
        "to_place: dram",
        "to_place: drma",
        "line 17, column 15: .*no place is named 'drma'.*'dram'",
    ),
    "dangling compute": ("place: dram\n", "place: hbm\n", "no place is named 'hbm'"),
    "memory loop": ("protocol: message", "protocol: memory", "line 18, column 15: .*need no link"),
    "falling load": ("load_bytes_per_s: 10", "load_bytes_per_s: 0", r"line 12, column 30: .*loads must rise"),
    "other format": (
        "name: small",
        "name: small\nformat: 2",
        "line 2, column 9: .*expected format 1, 2 came",
    ),
    "broken YAML": ("{value: 16e9,", "{value: 16e9", "line 5, column .*not YAML"),
    "tab": ("    tier: dram", "\ttier: dram", "line 4, column 1: not YAML"),
    "two documents": ("compute:", "---\ncompute:", "line 20, column 1: not YAML"),
    "control character": ("small", "sm\x00all", "line 1, column 9: not YAML"),
    "unknown anchor": ("name: cpu", "name: *cpu", "line 21, column 11: not YAML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_line_and_column(mistake: str) -> None:
    old, new, expected = MISTAKES[mistake]
    assert old in SMALL
    with pytest.raises(BadInput, match=f"(?s)small.yaml, .*{expected}"):
        load(SMALL.replace(old, new, 1) if mistake != "dangling compute" else SMALL[:-5] + "hbm\n")


def test_all_mistakes_of_a_file_are_named_at_once_in_its_order() -> None:
    text = (
        SMALL.replace("tier:", "teir:")
        .replace("assumed", "guessed", 1)
        .replace("1e-7", "-1", 1)
        .replace("to_place: dram", "to: dram")
    )
    with pytest.raises(BadInput) as error:
        load(text)
    lines = str(error.value).splitlines()
    assert [int(line.split("line ")[1].split(",")[0]) for line in lines] == [4, 5, 8, 15, 17]


def test_a_fabric_without_places_is_refused() -> None:
    with pytest.raises(BadInput, match=r"line 2, column 9: places: at least one is needed"):
        load("name: x\nplaces: []")


@given(st.integers(0, len(SMALL)), st.integers(0, 30), st.text(max_size=10))
def test_any_damage_to_a_file_is_bad_input_or_harmless(start: int, length: int, new: str) -> None:
    problem = "small.yaml, line"
    try:
        fabric = load(SMALL[:start] + new + SMALL[start + length :])
        assert load(fabric.yaml()) == fabric
    except BadInput as error:
        problem = str(error)
    assert problem.startswith("small.yaml, line")


def test_a_file_with_very_many_mistakes_names_the_first_twenty() -> None:
    with pytest.raises(BadInput, match="and 81 more") as error:
        load("\n".join(f"key{i}: 1" for i in range(99)))
    assert len(str(error.value).splitlines()) == 21


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_says_which_keys_are_expected(text: str) -> None:
    with pytest.raises(BadInput, match=r"small\.yaml, line [12], column 1: .*name, places"):
        load(text)


def test_bytes_that_are_no_text_are_named_by_line_and_column() -> None:
    with pytest.raises(BadInput, match=r"small\.yaml, line 2, column 4: not YAML"):
        load(b"name: x\nno \xff\n")


def test_endless_nesting_is_refused() -> None:
    with pytest.raises(BadInput, match="nested too deeply"):
        load("[" * 100_000)


def test_a_tag_cannot_run_code() -> None:
    with pytest.raises(BadInput, match="expected some text, a list came"):
        load(SMALL.replace("name: cpu", "name: !!python/object/apply:os.system [exit 1]"))


def test_words_that_yaml_would_turn_into_booleans_are_names() -> None:
    fabric = load(SMALL.replace("name: cpu", "name: no"))
    assert fabric.compute[0].name == "no"
    assert load(fabric.yaml()) == fabric


def test_values_made_in_python_obey_the_same_rules() -> None:
    with pytest.raises(BadInput, match="value: expected a number above 0, -1 came"):
        Figure(-1, "measured")
    one = Figure(1.0, "assumed")
    with pytest.raises(BadInput, match="latency_s: a value is needed"):
        Place("x", "dram", one, one, one, None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"places\[1\]\.name: the name 'x' is taken"):
        Fabric("f", (Place("x", "dram", one, one, one, one),) * 2)
    with pytest.raises(FrozenInstanceError):
        one.value = 2.0  # type: ignore[misc]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPENSHELF_FABRIC", raising=False)
    return tmp_path


def test_an_unmeasured_machine_is_an_error_that_says_to_probe(config: Path) -> None:
    with pytest.raises(UnknownName, match=r"openshelf/local\.yaml' does not exist. Run `openshelf probe`"):
        Fabric.load("local")


def test_local_is_the_users_file_unless_the_environment_names_another(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_path() == config / "openshelf" / "local.yaml"
    chain().save(local_path())
    assert Fabric.load() == chain()
    monkeypatch.setenv("OPENSHELF_FABRIC", "laptop")
    assert Fabric.load("local") == Fabric.load("laptop")
    monkeypatch.setenv("OPENSHELF_FABRIC", str(local_path()))
    assert Fabric.load("local") == chain()


def test_a_relative_config_folder_is_ignored(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert local_path() == Path.home() / ".config" / "openshelf" / "local.yaml"


def test_a_misspelt_preset_is_an_error_with_the_nearest_name(config: Path) -> None:
    with pytest.raises(UnknownName, match=r"no fabric named 'lapto'.*did you mean 'laptop'"):
        Fabric.load("lapto")


def test_a_missing_or_unreadable_file_is_an_error_that_names_it(config: Path) -> None:
    with pytest.raises(UnknownName, match=r"no fabric file '\./nowhere\.yaml'"):
        Fabric.load("./nowhere.yaml")
    with pytest.raises(BadInput, match="cannot read the fabric"):
        Fabric.load(config)


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid_and_prices_all_its_ways(name: str) -> None:
    fabric = Fabric.load(name)
    assert fabric.name == name
    jsonschema.validate(fabric.plain(), Fabric.schema())
    for source in fabric.places:
        for target in fabric.places:
            assert fabric.cost(1 << 20, source.name, target.name).source == "assumed"


def test_a_part_of_a_name_is_answered_with_the_names_that_have_it() -> None:
    assert nearest("aec", ["aoc", "copper-aec", "trace", "wafer"]) == "; did you mean 'copper-aec' or 'aoc' or 'wafer'?"
    made = nearest("cxl-switch", ["nvswitch-2", "ub-switch", "cxl-pbr"])
    assert made.startswith("; did you mean 'ub-switch' or 'cxl-pbr'")
    assert nearest("gb20-nvl72", ["gb200-nvl72", "laptop"]) == "; did you mean 'gb200-nvl72'?"
