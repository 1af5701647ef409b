"""A small tokenizer: bytes, single digits, and the two ends of a chat turn."""

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(merges=(), eos="<|im_end|>", specials=("<|im_start|>", "<|im_end|>")):
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    model = models.BPE({s: i for i, s in enumerate(symbols)}, list(merges))
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(specials))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=eos)
    wrapped.chat_template = TEMPLATE
    return wrapped


@pytest.fixture(scope="session")
def make_tokenizer():
    return build


@pytest.fixture(scope="session")
def tokenizer():
    return build()
