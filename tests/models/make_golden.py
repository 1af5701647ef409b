"""Makes golden/*.npz: small random models of every family and their logits according
to `transformers` on torch.

Needs torch, which the default suite does not install:

    pip install torch transformers && python tests/models/make_golden.py

Each file holds config.json as text, the tensors under Hugging Face names, prompts of
unequal length in one right-padded batch, their float32 logits, and the versions used.
"""

import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent / "golden"
VOCAB, LENGTH, LONGEST = 24, (23, 9, 1), 23
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
CONFIGS = {
    "llama3": transformers.LlamaConfig(
        **SMALL, rope_parameters=LLAMA3, tie_word_embeddings=False
    ),
    "smollm2": transformers.LlamaConfig(
        **{
            **SMALL,
            "hidden_size": 12,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
        },
        rms_norm_eps=1e-5,
        rope_parameters={**PLAIN, "rope_theta": 100000.0},
        tie_word_embeddings=True,
    ),
    "llama_bias": transformers.LlamaConfig(
        **SMALL,
        rope_parameters=LINEAR,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "qwen2": transformers.Qwen2Config(
        **SMALL, rope_parameters=PLAIN, tie_word_embeddings=True
    ),
    "qwen3": transformers.Qwen3Config(
        **SMALL, head_dim=6, rope_parameters=PLAIN, tie_word_embeddings=False
    ),
}


def randomise(model, rng) -> dict[str, np.ndarray]:
    """Fills a model with weights that make every part matter; returns them."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, tensor in sorted(state.items()):
        scale = tensor.shape[-1] ** -0.5 if tensor.ndim == 2 else 0.3
        centre = 1.0 if "norm" in name else 0.0
        drawn = rng.normal(centre, scale, tuple(tensor.shape)).astype(np.float32)
        tensor.copy_(torch.from_numpy(drawn))
    return {name: tensor.numpy() for name, tensor in state.items()}


@torch.no_grad()
def main():
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for seed, (name, config) in enumerate(CONFIGS.items()):
        rng = np.random.default_rng(seed)
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        ).eval()
        tensors = randomise(model, rng)
        tokens = rng.integers(0, VOCAB, (len(LENGTH), LONGEST), dtype=np.int32)
        seen = np.arange(LONGEST)[None] < np.array(LENGTH)[:, None]
        logits = model(
            input_ids=torch.from_numpy(tokens).long(),
            attention_mask=torch.from_numpy(seen).long(),
        ).logits.numpy()
        np.savez_compressed(
            HERE / f"{name}.npz",
            config=config.to_json_string(use_diff=False),
            versions=json.dumps(versions),
            tokens=tokens,
            length=np.array(LENGTH, np.int32),
            logits=np.where(seen[..., None], logits, 0),
            **{f"tensor/{key}": value for key, value in tensors.items()},
        )
        print(name, round(float(np.abs(logits[seen]).max()), 2))


if __name__ == "__main__":
    main()
