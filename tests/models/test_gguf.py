"""GGUF files: tensors, rotary order, quantisation, configuration and tokenizer."""

import gguf
import jax
import numpy as np
import pytest

from gpo.models import config as configs
from gpo.models import decoder as decoders
from gpo.models import load, weights

TOKENS = ["<end>", "<think>", "a", "b", "c", "1", "2", "Ġ", "ab", "Ġab", "12", "'", "s"]
TOKENS += ["'s", "11", "111"]
MERGES = ["a b", "Ġ ab", "1 2", "' s", "1 1", "11 1"]
TYPES = [3, 4] + [1] * (len(TOKENS) - 2)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
LLAMA = decoders.tiny(len(TOKENS), dim=32, hidden=32, norm_eps=1e-6, tied=False)
QWEN2 = LLAMA.replace(qkv_bias=True, tied=True)
QWEN3 = LLAMA.replace(qk_norm=True, head_dim=16)


def permute(x, heads):
    """As llama.cpp's converter stores rows of q and k."""
    split = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
    return split.swapaxes(1, 2).reshape(x.shape)


@pytest.fixture
def tensors(random_model):
    return lambda c, family: _tensors(random_model(c)[1], c, family)


def _tensors(params, c, family):
    """Params of a config, and its tensors as a GGUF file holds them."""
    held = weights.tensors(c, params)
    names = {
        n: g for w in weights.table(c) for n, g in zip(w.names, w.gguf, strict=True)
    }
    named = {names[n]: t for n, t in held.items()}
    for name, t in named.items():
        heads = {"attn_q": c.heads, "attn_k": c.kv_heads}.get(name.split(".")[-2])
        if family == "llama" and heads:
            named[name] = permute(t, heads)
    return params, named


def write(path, c, family, named, pre="smollm", kind=None, eos=0, **fields):
    w = gguf.GGUFWriter(path, family)
    w.add_block_count(c.layers)
    w.add_context_length(c.context)
    w.add_embedding_length(c.dim)
    w.add_feed_forward_length(c.hidden)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.norm_eps)
    w.add_rope_freq_base(c.rope_theta)
    for name, value in fields.items():
        add = w.add_string if isinstance(value, str) else w.add_float32
        add(f"{family}.{name.replace('__', '.')}", value)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(TOKENS)
    w.add_token_types(TYPES)
    w.add_token_merges(MERGES)
    w.add_chat_template(TEMPLATE)
    if eos is not None:
        w.add_eos_token_id(eos)
    for name, t in named.items():
        small = kind is not None and t.ndim == 2
        data = gguf.quants.quantize(t, kind) if small else t.astype(np.float32)
        w.add_tensor(name, data, raw_dtype=kind if small else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize(
    "c, family", [(LLAMA, "llama"), (QWEN2, "qwen2"), (QWEN3, "qwen3")]
)
def test_a_file_holds_config_and_params(c, family, tensors, tmp_path):
    params, named = tensors(c, family)
    loaded = load.load(write(tmp_path / "m.gguf", c, family, named))
    assert loaded.model.config == c
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


def test_quantised_tensors_are_dequantised(tensors, tmp_path):
    params, named = tensors(LLAMA, "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    loaded = load.load(write(tmp_path / "m.gguf", LLAMA, "llama", named, kind=kind))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=0.01), loaded.params, params
    )
    exact = named["blk.1.ffn_up.weight"]
    row = gguf.quants.dequantize(gguf.quants.quantize(exact, kind), kind)
    up = loaded.params["layers"]["mlp"]["up"]["kernel"][1]
    np.testing.assert_array_equal(up, row.T)
    assert not np.array_equal(row, exact)


def test_rotary_variants(tensors, tmp_path):
    _, named = tensors(LLAMA, "llama")
    fields = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    file = write(tmp_path / "linear.gguf", LLAMA, "llama", named, **fields)
    assert load.load(file).model.config.rope_scaling == configs.Linear(4.0)
    fields["rope__scaling__type"] = "yarn"
    file = write(tmp_path / "yarn.gguf", LLAMA, "llama", named, **fields)
    with pytest.raises(ValueError, match=r"rope\.scaling\.type is 'yarn'"):
        load.load(file)


def test_the_table_of_llama3_gives_its_parameters(tensors, tmp_path):
    c = LLAMA.replace(rope_theta=500000.0, head_dim=16)
    scaled = c.replace(rope_scaling=configs.Llama3(32.0, 1.0, 4.0, 8192))
    _, named = tensors(c, "llama")
    named["rope_freqs.weight"] = c.frequencies() / scaled.frequencies()
    assert (
        load.load(write(tmp_path / "a.gguf", c, "llama", named)).model.config == scaled
    )
    named["rope_freqs.weight"] = np.linspace(1, 32, 8).astype(np.float32)
    with pytest.raises(ValueError, match="not Llama 3.1's"):
        load.load(write(tmp_path / "b.gguf", c, "llama", named))


@pytest.mark.parametrize(
    "pre, ids",
    [
        ("smollm", [9, 7, 5, 6, 5, 5, 5, 13, 0]),
        ("qwen2", [9, 7, 5, 6, 5, 5, 5, 13, 0]),
        ("llama-bpe", [9, 7, 10, 5, 14, 13, 0]),
    ],
)
def test_tokenizer(pre, ids, tensors, tmp_path):
    _, named = tensors(QWEN2, "qwen2")
    file = write(tmp_path / "m.gguf", QWEN2, "qwen2", named, pre=pre)
    tokenizer = load.load(file).tokenizer
    assert tokenizer.encode(" ab 12111's<end>") == ids
    assert tokenizer.decode(ids) == " ab 12111's<end>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == " ab 12111's"
    assert tokenizer.encode("a<think>b", add_special_tokens=False) == [2, 1, 3]
    assert tokenizer.eos_token == "<end>" and tokenizer.chat_template == TEMPLATE


def test_files_that_cannot_be_used(tensors, tmp_path):
    _, named = tensors(LLAMA, "llama")
    cases = {
        "family 'gemma'": {"family": "gemma"},
        "pre are .*'deepseek'.*smollm": {"pre": "deepseek"},
        r"pass eos=\.\.\.": {"eos": None},
    }
    for i, (message, fields) in enumerate(cases.items()):
        arguments = {"family": "llama", **fields}
        file = write(tmp_path / f"{i}.gguf", LLAMA, named=named, **arguments)
        with pytest.raises(ValueError, match=message):
            load.load(file)
    assert load.load(tmp_path / "2.gguf", eos="<end>").tokenizer.eos_token_id == 0
    del named["blk.1.attn_k.weight"]
    file = write(tmp_path / "missing.gguf", LLAMA, "llama", named)
    with pytest.raises(ValueError, match=r"lacks 1 tensors: blk\.1\.attn_k\.weight"):
        load.load(file)
