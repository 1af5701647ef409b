"""An export reads back bit for bit, and says what it cannot hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
import transformers

from gpo.models import config as configs
from gpo.models import decoder as decoders
from gpo.models import export, load

CONFIGS = {
    "llama": {},
    "llama3": {"rope_scaling": configs.Llama3(8.0, 1.0, 4.0, 32), "tied": False},
    "linear": {"rope_scaling": configs.Linear(2.0), "mlp_bias": True},
    "bias": {"qkv_bias": True, "o_bias": True},
    "qwen2": {"qkv_bias": True, "context": 77},
    "qwen3": {"qk_norm": True, "head_dim": 24, "tied": False, "norm_eps": 1e-6},
}


@pytest.fixture
def small(random_model):
    return lambda **fields: random_model(decoders.tiny(16, dim=32, **fields))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_round_trip_is_exact(name, dtype, small, tmp_path):
    model, params = small(**CONFIGS[name], dtype=dtype, param_dtype=dtype)
    folder = export.export(model, params, None, tmp_path / "new" / "folder")
    again = load.load(folder, dtype)
    assert again.model is model
    jax.tree.map(np.testing.assert_array_equal, again.params, params)
    assert {leaf.dtype for leaf in jax.tree.leaves(again.params)} == {jnp.dtype(dtype)}


def test_tokenizer_and_stop_token_travel_along(small, tmp_path):
    vocab = {"a": 0, "b": 1, "<end>": 2}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="a"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token="<end>", chat_template="{{ messages }}"
    )
    model, params = small()
    folder = export.export(model, params, tokenizer, tmp_path)
    again = load.load(folder).tokenizer
    assert again.encode("b a <end>") == [1, 0, 2] and again.eos_token_id == 2
    assert again.chat_template == "{{ messages }}"
    generation = transformers.GenerationConfig.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert generation.eos_token_id == config.eos_token_id == 2
    assert config.architectures == ["LlamaForCausalLM"]


def test_exports_over_an_older_one(small, tmp_path):
    for fields in [{"qk_norm": True}, {"qkv_bias": True}]:
        model, params = small(**fields)
        again = load.load(export.export(model, params, None, tmp_path))
        assert again.model is model


def test_what_cannot_be_exported(small, tmp_path):
    model, params = small(o_bias=True)
    with pytest.raises(ValueError, match="no family of"):
        export.export(model, params, None, tmp_path)
    model, params = small()
    with pytest.raises(ValueError, match="params lack 'norm.scale'"):
        rest = {k: v for k, v in params.items() if k != "norm"}
        export.export(model, rest, None, tmp_path)
    mixed = {**params, "norm": {"scale": params["norm"]["scale"].astype(jnp.bfloat16)}}
    with pytest.raises(ValueError, match="one dtype"):
        export.export(model, mixed, None, tmp_path)
    deep, _ = small(layers=3)
    with pytest.raises(ValueError, match="hold 2 layers"):
        export.export(deep, params, None, tmp_path)
    assert not list(tmp_path.iterdir())
