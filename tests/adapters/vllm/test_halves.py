"""The scheduler's and the worker's half of the connector, without an engine between them: pages of known bytes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")

from openshelf import KVPool, Layout, Space
from openshelf.adapters.vllm import layout_of
from openshelf.adapters.vllm.options import Options
from openshelf.adapters.vllm.scheduler import Scheduler
from openshelf.adapters.vllm.worker import Worker
from openshelf.errors import BadInput, Mismatch
from tests.adapters.vllm.models import BLOCK, HEAD_DIM, HEADS, LAYERS, prompt, save_model
from tests.kv.prompts import assert_sound

torch: Any = importlib.import_module("torch")
vllm: Any = importlib.import_module("vllm")
interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
requests: Any = importlib.import_module("vllm.v1.request")

PAGES = 64
NAMES = [f"model.layers.{number}.self_attn.attn" for number in range(LAYERS)]
OPTIONS = Options(space="shelf", capacity="4MiB")


def cache_of(**changes: Any) -> Any:
    given = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": HEAD_DIM, "dtype": torch.float32, **changes}
    group = interface.KVCacheGroupSpec(NAMES, interface.FullAttentionSpec(**given))
    return interface.KVCacheConfig(num_blocks=PAGES, kv_cache_tensors=[], kv_cache_groups=[group])


def config_of(model: str, **changes: Any) -> Any:
    given = {"skip_tokenizer_init": True, "dtype": "float32", "block_size": BLOCK, "max_model_len": 1024, **changes}
    return vllm.EngineArgs(model, **given).create_engine_config()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def config(model: str) -> Any:
    return config_of(model)


Make = Callable[..., "Engine"]


@pytest.fixture
def make(space: Space, config: Any) -> Make:
    return lambda options=OPTIONS, **more: Engine(config, options, **more)


class Engine:
    """What vLLM does with a connector, for requests of one step each, whose blocks follow each other."""

    def __init__(self, config: Any, options: Options, loads: bool = True, saves: bool = True, rank: int = 0) -> None:
        self.scheduler = Scheduler(config, cache_of(), options, loads=loads, saves=saves)
        self.worker = Worker(cache_of(), options, rank)
        self.memory = {name: torch.zeros(PAGES, HEADS, BLOCK, 2 * HEAD_DIM) for name in NAMES}
        self.worker.register(self.memory)

    def ask(self, tokens: list[int], first: int = 0, **more: Any) -> tuple[int, Any]:
        """Looks a prompt up and plans its step, in which all of it is computed: tokens found, and the step."""
        sampling = vllm.SamplingParams(max_tokens=1)
        request = requests.Request(f"of {first}", tokens, sampling, None, **more)
        found = self.scheduler.matched(request, 0)
        numbers = list(range(first, first + len(tokens) // BLOCK + 1))
        self.scheduler.allocated(request, SimpleNamespace(get_block_ids=lambda: (numbers,)), found)
        request.num_computed_tokens = found
        state = SimpleNamespace(get_block_ids=lambda name: (numbers,))
        scheduled = {request.request_id: len(tokens) - found}
        return found, self.scheduler.plan(
            SimpleNamespace(num_scheduled_tokens=scheduled, kv_connector_block_state=state)
        )

    def run(self, step: Any) -> set[int]:
        """The worker's part: loads, and when they are over the step; vLLM's numbers of blocks that were not loaded."""
        self.worker.begin(step)
        loaded: set[str] = set()
        while loaded != {copy.request for copy in step.loads}:
            loaded |= self.worker.loaded()
        failed = self.worker.failed()
        if not failed:
            self.compute(step)
        self.scheduler.done(loaded, failed)
        return failed

    def compute(self, step: Any) -> None:
        for name in NAMES:
            self.worker.save(name, step)
        self.worker.end()

    def serve(self, tokens: list[int], first: int = 0, **more: Any) -> int:
        found, step = self.ask(tokens, first, **more)
        assert not self.run(step)
        return found

    def fill(self) -> None:
        for number, pages in enumerate(self.memory.values()):
            pages.copy_(torch.arange(pages.numel()).view(pages.shape) + number)

    def pool(self, **changes: Any) -> KVPool:
        assert self.scheduler._pools is not None
        return self.scheduler._pools.of(replace(self.scheduler._layout, **changes), "")


def test_bytes_come_back_as_they_were_in_other_pages(make: Make) -> None:
    writer, reader, tokens = make(), make(), prompt(5 * BLOCK + 3, 1)
    writer.fill()
    assert writer.serve(tokens, first=10) == 0
    assert reader.serve(tokens, first=30) == 5 * BLOCK
    for name in NAMES:
        assert torch.equal(reader.memory[name][30:35], writer.memory[name][10:15])
        assert not reader.memory[name][35:].any()
    assert_sound(writer.pool())


def test_what_was_found_stays_until_it_is_read(make: Make) -> None:
    engine, tokens = make(), prompt(4 * BLOCK + 1, 2)
    engine.fill()
    engine.serve(tokens)
    found, step = engine.ask(tokens, first=20)
    assert found == 4 * BLOCK
    assert engine.pool().clear() == 0  # held
    assert not engine.run(step)
    engine.scheduler.forget("of 20")
    assert engine.pool().clear() == 4


def test_blocks_that_are_gone_are_reported_and_nothing_wrong_is_stored(make: Make) -> None:
    engine, start = make(), prompt(4 * BLOCK, 3)
    engine.fill()
    engine.serve(start)
    found, step = engine.ask([*start, *prompt(2 * BLOCK, 4)], first=20)
    assert found == 4 * BLOCK
    engine.scheduler._hits.clear()  # as if its process had lost them
    engine.pool().evict(start, keep=2 * BLOCK)
    assert engine.run(step) == {22, 23}
    assert engine.pool().stats()["blocks"] == 2
    assert engine.ask([*start, *prompt(2 * BLOCK, 4)], first=20)[0] == 0  # that request is not looked up again
    assert engine.serve([*start, *prompt(2 * BLOCK, 4)], first=40) == 2 * BLOCK  # others are
    assert engine.pool().stats()["blocks"] == 6


def test_a_request_that_is_forgotten_while_it_loads_is_held_until_it_is_over(make: Make) -> None:
    engine, start = make(), prompt(4 * BLOCK, 3)
    engine.serve(start)
    _, step = engine.ask([*start, 1], first=20)
    engine.scheduler.forget("of 20")  # aborted
    assert engine.pool().clear() == 0
    engine.run(step)
    assert engine.pool().clear() == 4
    assert not engine.scheduler._loading


def test_a_space_that_goes_away_stops_nothing(make: Make) -> None:
    engine, tokens = make(), prompt(3 * BLOCK, 5)
    engine.serve(tokens)
    found, step = engine.ask([*tokens, 1], first=20)
    assert found == 3 * BLOCK
    engine.scheduler._hits.clear()
    engine.worker._pools = None
    Space.remove("shelf")
    assert engine.run(step) == {20, 21, 22}
    engine.ask(prompt(3 * BLOCK, 6), first=30)


def test_a_full_pool_serves_on(make: Make, space: Space) -> None:
    size = Layout("a", LAYERS, HEADS, HEAD_DIM, "float32").block_bytes(BLOCK)
    engine, tokens = make(replace(OPTIONS, pool="tiny", capacity=5 * size)), prompt(9 * BLOCK, 7)
    room = engine.pool().stats()["capacity_blocks"]
    assert room < 9
    engine.serve(tokens)
    with engine.pool().match(tokens) as hit:
        assert hit.blocks == room
        engine.serve(prompt(9 * BLOCK, 8), first=20)  # all is held: declined
    assert engine.pool().stats()["declined_blocks"] > 0


def test_without_a_space_it_serves_on(home: Path, config: Any) -> None:
    engine = Engine(config, OPTIONS)
    assert engine.serve(prompt(2 * BLOCK, 9)) == 0
    assert engine.serve(prompt(2 * BLOCK, 9)) == 0


def test_a_space_is_made_when_its_size_is_given(home: Path, config: Any) -> None:
    engine = Engine(config, replace(OPTIONS, size="16MiB"))
    engine.serve(prompt(2 * BLOCK + 1, 10))
    assert engine.serve(prompt(2 * BLOCK + 1, 10)) == 2 * BLOCK
    Space.remove("shelf")


def test_a_prompt_is_found_when_all_ranks_have_it(space: Space, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.parallel_config, "tensor_parallel_size", 2)
    first, second = (Engine(config, OPTIONS, rank=rank) for rank in range(2))
    tokens = prompt(2 * BLOCK + 1, 11)
    first.fill()
    assert first.serve(tokens) == 0
    assert first.serve(tokens, first=10) == 0  # the other has none
    assert second.serve(tokens) == 0
    assert first.serve(tokens, first=20) == second.serve(tokens, first=20) == 2 * BLOCK
    assert torch.equal(first.memory[NAMES[0]][20:22], first.memory[NAMES[0]][0:2])
    assert not second.memory[NAMES[0]].any()


def test_roles_only_load_or_only_save(make: Make) -> None:
    producer, consumer, tokens = make(loads=False), make(saves=False), prompt(2 * BLOCK + 1, 12)
    assert consumer.serve(tokens) == 0
    assert producer.pool().stats()["blocks"] == 0
    assert producer.serve(tokens) == producer.serve(tokens, first=10) == 0
    assert consumer.serve(tokens, first=10) == 2 * BLOCK


def test_requests_whose_tokens_do_not_tell_all_are_left_alone(make: Make) -> None:
    engine, tokens = make(), prompt(2 * BLOCK + 1, 13)
    engine.serve(tokens, prompt_embeds=torch.zeros(len(tokens), 128))
    engine.serve(tokens, first=10, resumable=True)
    lora = importlib.import_module("vllm.lora.request").LoRARequest("far", 1, "somebody/adapter")
    engine.serve(tokens, first=20, lora_request=lora)
    assert engine.pool().stats()["blocks"] == 0


def test_tenants_and_salts_keep_prompts_apart(make: Make) -> None:
    tokens = prompt(2 * BLOCK + 1, 14)
    engines = [make(replace(OPTIONS, **keys)) for keys in ({}, {"tenant": "a"}, {"tenant": "a", "salt": "s"})]
    for engine in engines:
        assert engine.serve(tokens) == 0
        assert engine.serve(tokens, first=10, cache_salt="c") == 0
        assert engine.serve(tokens, first=20) == engine.serve(tokens, first=30, cache_salt="c") == 2 * BLOCK


def test_layouts_differ_wherever_caches_would(
    config: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(config, cache_of())
    assert (layout.layers, layout.heads, layout.head_dim, layout.dtype) == (LAYERS, HEADS, HEAD_DIM, "float32")
    same = save_model(tmp_path / "same")
    assert layout_of(config_of(same), cache_of()) == layout
    others = [
        layout_of(config_of(save_model(tmp_path / "other", seed=2)), cache_of()),
        layout_of(config_of(model, hf_overrides={"rms_norm_eps": 1e-3}), cache_of()),
        layout_of(config_of(model, dtype="bfloat16"), cache_of(dtype=torch.bfloat16)),
        layout_of(config_of(model, max_model_len=512), cache_of()),  # LongRoPE and others choose by it
        layout_of(config, cache_of(), name="llama@1"),
        layout_of(config, cache_of(), adapter="lora"),
    ]
    monkeypatch.setattr("vllm.v1.attention.backends.cpu_attn._get_attn_isa", lambda *_: "amx")
    others.append(layout_of(config, cache_of()))  # a page of the same numbers in another order
    (tmp_path / "same" / "modeling_llama.py").write_text("# another way to compute")
    monkeypatch.undo()
    others.append(layout_of(config_of(same), cache_of()))
    assert len({layout, *others}) == len(others) + 1


def test_weights_that_nothing_names_are_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"load_format='dummy'.*'model' in kv_connector_extra_config"):
        layout_of(config_of(model, load_format="dummy"), cache_of())
    (tmp_path / "config.json").write_bytes((Path(model) / "config.json").read_bytes())
    with pytest.raises(BadInput, match=r"has no weights .*\.safetensors"):
        layout_of(config_of(str(tmp_path)), cache_of())


def test_wrong_options_name_the_option() -> None:
    assert Options.read({"space": "kv", "size": "1GiB", "model": None}) == Options("kv", "1GiB")
    for given, error, text in (
        ({}, BadInput, "needs 'space'"),
        ({"space": "kv", "spcae": "x"}, BadInput, "no option 'spcae'; there are space, size, pool"),
        ({"space": 3}, Mismatch, "'space' is text, got 3"),
        ({"space": "kv", "size": "much"}, BadInput, "'size': 'much' is not a size"),
        ({"space": "kv", "quota": -1}, BadInput, "'quota': a size is positive"),
    ):
        with pytest.raises(error, match=text):
            Options.read(given)


def test_a_pool_of_other_blocks_names_the_option(make: Make, space: Space) -> None:
    KVPool(space, Layout("other", 1, 1, 8), 16, capacity="1MiB")
    with pytest.raises(Mismatch, match=r"blocks of 16 tokens .*option 'pool'"):
        make()


def test_unsupported_engines_are_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for field, value in (("head_size_v", 16), ("non_causal", True)):
        with pytest.raises(BadInput, match=f"has {field} = {value}, only"):
            layout_of(config, cache_of(**{field: value}))
    two = cache_of()
    two.kv_cache_groups *= 2
    with pytest.raises(BadInput, match="2 kinds of KV cache"):
        layout_of(config, two)
    sliding = cache_of()
    sliding.kv_cache_groups[0].kv_cache_spec = SimpleNamespace()
    with pytest.raises(BadInput, match="only full attention"):
        layout_of(config, sliding)
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    with pytest.raises(BadInput, match="pipeline_parallel_size=2"):
        layout_of(config, cache_of())


def test_pages_of_another_shape_are_refused(make: Make) -> None:
    engine = make()
    with pytest.raises(Mismatch, match=r"layers.0.* expected \(blocks, 2, 32, 64\)"):
        engine.worker.register({name: torch.zeros(2, PAGES, HEADS, BLOCK, HEAD_DIM) for name in NAMES})
