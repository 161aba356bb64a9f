"""Small language models with random weights, and a tokenizer of bytes that merges the words of some sentences."""

from functools import cache

import torch

from fringe.models import import_transformers

SENTENCES = [
    "the capital of france is paris and that of england is london .",
    "one two three four five six seven eight nine ten",
    "a cat saw a dog in new york , and the dog saw the cat .",
]
#: A template of chats in the form of many models.
TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@cache
def language_tokenizer(begin: bool = False):
    """A tokenizer whose tokens of words begin with their space; with ``begin`` texts begin with a special token."""
    transformers = import_transformers()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|end|>", "<|turn|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=["<|turn|>"],
        model_max_length=128,
        chat_template=TEMPLATE,
    )


def language_model(kind: str = "Llama", seed: int = 0, **sizes: int):
    """A decoder of two layers with random weights, large enough that tokens differ."""
    transformers = import_transformers()
    common = {"vocab_size": len(language_tokenizer()), "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if kind == "GPT2":
        settings = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    else:
        settings = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        settings |= {"num_key_value_heads": 2, "max_position_embeddings": 128}
    config = getattr(transformers, f"{kind}Config")(**common, **settings, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn_like(weight) * (0.3 if weight.dim() > 1 else 0.1) + float(weight.dim() == 1))
    return model.eval().requires_grad_(False)
