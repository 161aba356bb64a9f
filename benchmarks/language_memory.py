"""Memory of the maps of a next token by the length of the prompt: the peak of a process of its own, per length.

    python benchmarks/language_memory.py [METHOD] [LENGTH ...]

The model has the sizes of SmolLM2-135M and random weights: 30 layers, 9 heads, 49,152 tokens; 0.5 GB in float32. An
exponent is that of a power law between a length and the one before it, of what is above the memory before the call;
with more than 512 tokens attention is fused, so that it is no law from 512 to 1,024. Integrated Gradients take two
points, one after the other: at 256 tokens eight of them had a peak 2% higher.

On one core: 1.33 GiB at 256 tokens, 1.94 at 512 (exponent 1.50), 1.61 at 1,024, and 2.48 at 2,048 (exponent 1.28).
"""

import math
import resource
import subprocess
import sys
import time

LENGTHS = (256, 512, 1024, 2048)


def measure(method: str, length: int) -> None:
    import torch

    import fringe
    from fringe.models import import_transformers
    from fringe.text import NextToken

    transformers = import_transformers()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)

    class Tokenizer:  # the prompt is drawn: tokens without texts
        is_fast = True

    reader = NextToken(model, Tokenizer())
    ids = torch.randint(config.vocab_size, (1, length))
    x = model.get_input_embeddings()(ids)
    arguments = {"attention_mask": torch.ones(1, length, dtype=torch.long), "moves": torch.ones(1, length).bool()}
    arguments |= {"start": x, "candidates": torch.arange(10)[None], "words": torch.arange(length)[None] // 64}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    chosen = fringe.IntegratedGradients(steps=2) if method == "ig" else method
    fringe.attribute(reader, x, method=chosen, target=0, forward_kwargs=arguments)
    seconds = time.perf_counter() - begin
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, seconds)


def main() -> None:
    method, *given = sys.argv[1:] or ["ig"]
    last: tuple[int, float] | None = None
    for length in [int(one) for one in given] or LENGTHS:
        command = [sys.executable, __file__, "--measure", method, str(length)]
        before, peak, seconds = map(float, subprocess.check_output(command, text=True).split()[-3:])
        above = peak - before
        exponent = "" if last is None else f", exponent {math.log(above / last[1]) / math.log(length / last[0]):.2f}"
        last = (length, above)
        print(f"{method} {length:5d} tokens: {peak / 2**20:.2f} GiB at most{exponent}; {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]))
    else:
        main()
