"""GGUF files: configuration, dequantised tensors and the tokenizer they carry."""

import pathlib
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import tokenizers
import transformers
from tokenizers import pre_tokenizers

from gpo import checks
from gpo.models import config as configs
from gpo.models import folder, weights

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Fields:
    """The key-value part of a file; keys of the architecture may omit its name."""

    def __init__(self, reader: gguf.GGUFReader, source: str):
        self.fields, self.source = reader.fields, source
        self.family = self["general.architecture"]

    def get(self, key: str, default: Any = None) -> Any:
        field = self.fields.get(key)
        return default if field is None else field.contents()

    def own(self, key: str, default: Any = None) -> Any:
        return self.get(f"{self.family}.{key}", default)

    def __getitem__(self, key: str) -> Any:
        found = self.get(key)
        checks.require(
            found is not None,
            f"{self.source} has no field {key!r}: an incomplete GGUF file",
        )
        return found

    def number(self, key: str) -> float:
        """A float32 field as the shortest decimal, 1e-05 and not 9.999999747e-06."""
        return float(str(np.float32(self[f"{self.family}.{key}"])))

    def count(self, key: str) -> int:
        return int(self[f"{self.family}.{key}"])


def open_file(path: pathlib.Path, dtype: str) -> weights.Checkpoint:
    """Opens a GGUF file of the llama, qwen2 or qwen3 architecture.

    Quantised tensors are dequantised by numpy. Rows of q and k, which llama files hold
    in the order of interleaved rotary pairs, are put back.

    Raises:
      ValueError: another architecture, or a rotary scaling that the decoder lacks.
    """
    reader = gguf.GGUFReader(path)
    fields, found = _Fields(reader, str(path)), {t.name: t for t in reader.tensors}
    folder.check_family(fields.family, str(path))
    config = _config(fields, found).replace(dtype=dtype, param_dtype=dtype)

    def read(name: str) -> np.ndarray:
        tensor = found[name]
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
        module = name.split(".")[-2]
        turned = fields.family == "llama" and module in heads
        return _unpermute(array, heads[module]) if turned else array

    return weights.Checkpoint(str(path), config, found.keys(), lambda w: w.gguf, read)


def _unpermute(x: np.ndarray, heads: int) -> np.ndarray:
    split = x.reshape(heads, -1, 2, *x.shape[1:])
    return split.swapaxes(1, 2).reshape(x.shape)


def _config(fields: _Fields, tensors: dict) -> configs.Config:
    heads, dim = fields.count("attention.head_count"), fields.count("embedding_length")
    head_dim = int(fields.own("attention.key_length", dim // heads))
    plain = configs.Config(
        vocab=len(fields["tokenizer.ggml.tokens"]),
        layers=fields.count("block_count"),
        dim=dim,
        heads=heads,
        kv_heads=int(fields.own("attention.head_count_kv", heads)),
        head_dim=head_dim,
        hidden=fields.count("feed_forward_length"),
        rope_theta=float(fields.own("rope.freq_base", 10000.0)),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        qkv_bias=fields.family == "qwen2" or "blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm=fields.family == "qwen3",
        tied="output.weight" not in tensors,
        context=fields.count("context_length"),
    )
    return plain.replace(rope_scaling=_scaling(fields, tensors, plain))


def _scaling(fields: _Fields, tensors: dict, plain: configs.Config):
    if "rope_freqs.weight" in tensors:
        divisor = np.asarray(tensors["rope_freqs.weight"].data, np.float32)
        # The file holds no parameters of the scaling, only the resulting table, whose
        # largest entry is the factor; the others are the same in all releases.
        scaling = configs.Llama3(float(divisor.max()), 1.0, 4.0, 8192)
        ratio = plain.frequencies() / plain.replace(rope_scaling=scaling).frequencies()
        checks.require(
            divisor.shape == ratio.shape and np.allclose(ratio, divisor, rtol=1e-4),
            f"{fields.source} scales rotary frequencies by a table that is not Llama "
            "3.1's: load the Hugging Face folder of this model",
        )
        return scaling
    kind = fields.own("rope.scaling.type", "none")
    checks.require(
        kind in ("none", "linear"),
        f"{fields.source}: rope.scaling.type is {kind!r}, the decoder has 'linear' and "
        "'none' (and Llama 3.1's table)",
    )
    return (
        None if kind == "none" else configs.Linear(fields.number("rope.scaling.factor"))
    )


def _digits():
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


def _pattern(digits: str):
    split = pre_tokenizers.Split(tokenizers.Regex(_SPLIT % digits), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, level])


_PRE: dict[str, Callable[[], Any]] = {
    "smollm": _digits,
    "qwen2": lambda: _pattern(""),
    "llama-bpe": lambda: _pattern("{1,3}"),
}


def tokenizer(path: pathlib.Path) -> Any:
    """The byte-level BPE tokenizer that a GGUF file carries, chat template included.

    Returns:
      `transformers.PreTrainedTokenizerFast`.
    Raises:
      ValueError: a tokenizer of another kind.
    """
    fields = _Fields(gguf.GGUFReader(path), str(path))
    kind = (fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "default"))
    checks.require(
        kind[0] == "gpt2" and kind[1] in _PRE,
        f"{path}: tokenizer.ggml.model and .pre are {kind}, supported is 'gpt2' with "
        f"{sorted(_PRE)}: load the Hugging Face folder of this model",
    )
    names = fields["tokenizer.ggml.tokens"]
    fast = _byte_level(names, fields["tokenizer.ggml.merges"], _PRE[kind[1]]())
    if kind[1] == "qwen2":
        fast.normalizer = tokenizers.normalizers.NFC()
    types = fields["tokenizer.ggml.token_type"]
    for names_of, special in ((3, True), (4, False)):
        chosen = [n for n, t in zip(names, types, strict=True) if t == names_of]
        fast.add_tokens(
            [
                tokenizers.AddedToken(n, special=special, normalized=False)
                for n in chosen
            ]
        )
    return _wrap(fast, fields, names)


def _byte_level(names: list[str], merges: list[str], pre) -> tokenizers.Tokenizer:
    vocab = {name: i for i, name in enumerate(names)}
    pairs: Any = [tuple(m.split(" ")) for m in merges]
    fast = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, pairs))
    fast.pre_tokenizer = pre
    fast.decoder = tokenizers.decoders.ByteLevel()
    return fast


def _wrap(fast: tokenizers.Tokenizer, fields: _Fields, names: list[str]) -> Any:
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {r: fields.get(f"tokenizer.ggml.{key}_token_id") for key, r in roles.items()}
    known = {f"{r}_token": names[i] for r, i in ids.items() if i is not None}
    if fields.get("tokenizer.ggml.add_bos_token", False):
        first = known["bos_token"]
        fast.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, ids["bos"])]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast,
        chat_template=fields.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **known,
    )
