"""Nothing is stored unless a call of the very model told what it is: every other way is right, or refused."""

# ruff: noqa: E402 (what is skipped must not be imported)
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

from openshelf import KVPool, Space
from openshelf.adapters.transformers import PooledCache, layout_of
from openshelf.errors import BadInput, Mismatch
from tests.adapters.transformers.models import BLOCK, LOGITS_MAY_DIFFER, answer, assert_same, model_of, pool_of, prompt

IDS = torch.from_numpy(prompt(40))[None]


@pytest.fixture
def model() -> Any:
    """One that a test may change."""
    return model_of("llama")


@pytest.fixture
def pool(space: Space, model: Any) -> KVPool:
    return pool_of(space, model)


def assert_all_right(pool: KVPool, model: Any) -> None:
    """Whatever is in the pool is what a model of these weights computes."""
    fresh = model_of("llama")
    for tokens in (prompt(40), prompt(64)):
        assert_same(answer(model, pool, tokens), answer(fresh, None, tokens))


def test_a_compiled_model_stores_what_it_computes(space: Space) -> None:
    torch.compiler.reset()
    around, inside, fresh = (model_of("llama", num_hidden_layers=2) for _ in range(3))  # every layer takes seconds
    inside.compile(backend="eager")
    for number, called in enumerate((torch.compile(around, backend="eager"), inside)):
        pool = pool_of(space, fresh, tenant=str(number))
        with torch.no_grad():
            called(IDS, past_key_values=PooledCache(pool, called, IDS))
        ours = answer(fresh, pool, prompt(40))
        assert ours.hit == 32
        assert_same(ours, answer(fresh, None, prompt(40)))
    torch.compiler.reset()


def test_a_compiled_forward_needs_a_name(pool: KVPool, model: Any) -> None:
    model.forward = torch.compile(model.forward, backend="eager")
    with pytest.raises(BadInput, match="another module, hook or forward"):
        PooledCache(pool, model, IDS)
    with pytest.raises(BadInput, match=r"a forward of its own, .*give name="):
        layout_of(model)


def test_a_model_in_training_mode_is_refused(pool: KVPool, model: Any) -> None:
    cache = PooledCache(pool, model, IDS)
    model.train()
    for run in (lambda: model(IDS, past_key_values=cache), lambda: PooledCache(pool, model, IDS)):
        with pytest.raises(BadInput, match="training mode, expected evaluation mode"):
            run()
    model.eval()
    model.model.layers[1].self_attn.train()
    with pytest.raises(BadInput, match=r"self_attn is in training mode"):
        PooledCache(pool, model, IDS)
    model.eval()
    fresh = model_of("llama").train()
    layout_of(fresh)  # is made all the same
    with pytest.raises(BadInput, match="training mode"):
        PooledCache(pool, fresh, IDS)
    assert pool.stats()["blocks"] == 0


def changes() -> dict[str, Any]:
    def weights(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight[3, 3] += 1

    def other_data(model: Any) -> None:
        weight = model.model.layers[0].self_attn.k_proj.weight
        weight.data = weight.data * 2

    def loaded(model: Any) -> None:
        model.load_state_dict(model_of("llama", seed=2).state_dict())

    def another_module(model: Any) -> None:
        model.model.layers[0].mlp = copy.deepcopy(model.model.layers[1].mlp)

    def hook(model: Any) -> None:
        model.model.embed_tokens.register_forward_hook(lambda module, args, out: out * 2)

    def hook_before(model: Any) -> None:
        model.register_forward_pre_hook(lambda module, args: (args[0] + 1,) if args else None)

    def forward(model: Any) -> None:
        model.model.norm.forward = lambda states: states

    def setting(model: Any) -> None:
        model.model.layers[0].self_attn.scaling *= 2

    def causal(model: Any) -> None:
        model.model.layers[0].self_attn.is_causal = False

    def config(model: Any) -> None:
        model.config.is_causal = False

    def buffer(model: Any) -> None:
        model.model.rotary_emb.inv_freq *= 0.5

    def moved(model: Any) -> None:
        model.double()

    return {change.__name__: change for change in list(locals().values())}


@pytest.mark.parametrize("change", changes())
def test_a_model_that_was_changed_needs_another_layout(space: Space, pool: KVPool, model: Any, change: str) -> None:
    cache = PooledCache(pool, model, IDS)
    changes()[change](model)
    with pytest.raises(BadInput, match="not what it was when its layout was made"):
        PooledCache(pool, model, IDS)
    with pytest.raises(BadInput, match="not what it was when its layout was made"):
        model(IDS, past_key_values=cache)
    assert pool.stats()["blocks"] == 0


def test_other_weights_for_one_call_are_refused(pool: KVPool, model: Any) -> None:
    others = dict(model_of("llama", seed=2).named_parameters())
    with pytest.raises(BadInput, match=r"the weight .* was changed"):
        torch.func.functional_call(model, others, (IDS,), {"past_key_values": PooledCache(pool, model, IDS)})
    model(IDS, past_key_values=PooledCache(pool, model, IDS))
    assert_all_right(pool, model)


def test_models_that_look_ahead_are_refused() -> None:
    for changes in ({"is_causal": False},):
        with pytest.raises(BadInput, match=r"keys of the first 12 tokens change when others follow them"):
            layout_of(model_of("llama", **changes))
    bert = transformers.BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    with pytest.raises(BadInput, match="bert"):
        layout_of(transformers.BertLMHeadModel(bert).eval())


class Drawing(torch.nn.Module):  # type: ignore[misc]
    def forward(self, states: Any) -> Any:
        return torch.nn.functional.dropout(states, 0.5, training=True)


def test_models_that_draw_at_random_are_refused(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = Drawing().eval()
    with pytest.raises(BadInput, match=r"layer 1 .* change when others follow"):
        layout_of(model)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization", "ignore:torch.quantize_per_tensor")
def test_models_that_scale_a_token_by_the_others_of_a_call_are_refused(model: Any) -> None:
    int8 = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(BadInput, match="change when others follow them"):
        layout_of(int8.eval())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"encoder_hidden_states": torch.ones(1, 3, 64)}, "encoder_hidden_states"),
        ({"token_type_ids": torch.zeros(1, 40, dtype=torch.int64)}, "token_type_ids"),
        ({"attention_mask": torch.ones(1, 1, 40, 40)}, "2 dimensions"),
        ({"attention_mask": torch.ones(1, 39)}, "over all 40 tokens"),
        ({"attention_mask": {"full_attention": torch.ones(1, 40)}}, "2 dimensions"),
        ({"attention_mask": torch.tensor([[0] + 39 * [1]])}, "padded"),
        ({"position_ids": torch.arange(1, 41)[None]}, "position_ids must count"),
        ({"cache_position": torch.arange(1, 41)}, "cache_position must count"),
        ({"inputs_embeds": torch.ones(1, 40, 64)}, "inputs_embeds"),
        ({"anything": 1}, "'anything' may change"),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_what_changes_the_meaning_of_tokens_is_refused(
    pool: KVPool, model: Any, given: dict[str, Any], text: str, inner: bool
) -> None:
    called = model.model if inner else model
    with pytest.raises(BadInput, match=text):
        called(IDS, **given, past_key_values=PooledCache(pool, model, IDS))
    if "attention_mask" in given:
        with pytest.raises(BadInput, match=text):
            called(IDS, given["attention_mask"], None, PooledCache(pool, model, IDS))  # by position
    assert pool.stats()["blocks"] == 0


def test_inner_and_outer_models_store_the_same(pool: KVPool, model: Any) -> None:
    with torch.no_grad():
        model.model(IDS, past_key_values=PooledCache(pool, model, IDS))
    assert pool.present(prompt(40)) == 32
    wrapped = torch.nn.DataParallel(model)
    longer = torch.from_numpy(prompt(64))[None]
    with torch.no_grad():
        wrapped(longer[:, 32:], past_key_values=PooledCache(pool, model, longer))
    assert pool.present(prompt(64)) == 64
    assert_all_right(pool, model)


def test_layers_alone_and_states_from_elsewhere_are_refused(pool: KVPool, model: Any) -> None:
    cache = PooledCache(pool, model, IDS)
    states = torch.ones(1, 2, 40, 16)
    with pytest.raises(BadInput, match="outside of a call"):
        cache.update(states, states, 0)
    with pytest.raises(BadInput, match="outside of a call"):
        model(IDS, past_key_values=cache)  # it has heard of others
    cache = PooledCache(pool, model, IDS)
    other = model_of("llama", seed=2)
    with pytest.raises(BadInput, match="outside of a call"):
        other(IDS, past_key_values=cache)
    assert pool.stats()["blocks"] == 0


def test_what_another_model_generated_is_not_stored(pool: KVPool, model: Any) -> None:
    cache = PooledCache(pool, model, IDS)
    model(IDS, past_key_values=cache)
    other = model_of("llama", seed=2)
    with torch.no_grad():
        for token in range(24):
            other(torch.tensor([[token]]), past_key_values=cache)
    with pytest.raises(BadInput, match="outside of a call"):
        cache.store(torch.cat([IDS, torch.arange(24)[None]], 1))
    assert_all_right(pool, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_to_another_type_is_refused(pool: KVPool, model: Any, dtype: Any) -> None:
    with torch.autocast("cpu", dtype), pytest.raises(Mismatch, match=r"autocast computes in \w+, .*give dtype="):
        model(IDS, past_key_values=PooledCache(pool, model, IDS))
    assert pool.stats()["blocks"] == 0


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_traced_calls_are_refused(pool: KVPool, model: Any) -> None:
    fake: Any = pytest.importorskip("torch._subclasses.fake_tensor")
    with pytest.raises(Mismatch, match="plain tensors"), fake.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model(mode.from_tensor(IDS), past_key_values=PooledCache(pool, model, IDS))
    assert pool.stats()["blocks"] == 0


def test_sequences_that_changed_places_are_not_stored(pool: KVPool, model: Any) -> None:
    rows = torch.stack([torch.from_numpy(prompt(40, seed)) for seed in (1, 2)])
    moves: list[Callable[[Any], Any]] = [
        lambda cache: cache.batch_select_indices(torch.tensor([1, 0])),
        lambda cache: cache.batch_repeat_interleave(2),
    ]
    for move in moves:
        cache = PooledCache(pool, model, rows)
        with torch.no_grad():
            model(rows[:, cache.hit_tokens :], past_key_values=cache)
        move(cache)
        with pytest.raises(BadInput, match="cannot be stored"):
            cache.store(rows)
        again = PooledCache(pool, model, rows)
        move(again)
        with pytest.raises(BadInput, match="takes nothing more"):
            model(rows[:, again.hit_tokens :], past_key_values=again)


def test_copies_of_a_model_are_models_of_their_own(pool: KVPool, model: Any) -> None:
    twin = copy.deepcopy(model)
    assert_all_right(pool, twin)
    with torch.no_grad():
        twin.model.embed_tokens.weight.mul_(2)
    with pytest.raises(BadInput, match="changed"):
        PooledCache(pool, twin, IDS)
    assert_all_right(pool, model)
    assert pickle.loads(pickle.dumps(model._openshelf_known)) is None


def test_gradients_change_nothing(pool: KVPool, model: Any) -> None:
    cache = PooledCache(pool, model, IDS)
    with_gradients = model(IDS, past_key_values=cache).logits
    assert with_gradients.requires_grad
    assert (with_gradients - model_of("llama")(IDS).logits).abs().max() < LOGITS_MAY_DIFFER
    assert_all_right(pool, model)


def test_attentions_and_states_may_be_asked_for(space: Space) -> None:
    model = model_of("llama", attn_implementation="eager")
    pool = pool_of(space, model)
    for _ in range(2):
        cache = PooledCache(pool, model, IDS)
        rest = IDS[:, cache.hit_tokens :]
        with torch.no_grad():
            out = model(rest, past_key_values=cache, output_attentions=True, output_hidden_states=True)
        assert out.attentions[0].shape[-1] == 40
    assert_all_right(pool, model)


def test_a_name_stands_for_hooks_that_were_there(space: Space, model: Any) -> None:
    model.model.embed_tokens.register_forward_hook(lambda module, args, out: out * 2)
    pool = KVPool(space, layout_of(model, name="doubled@1"), BLOCK, name="named", capacity="1MiB")
    assert answer(model, pool, prompt(40)).stored == 2
    assert_same(answer(model, pool, prompt(40)), answer(model, None, prompt(40)))
