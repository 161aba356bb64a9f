"""Passes and verdicts of FRInGe on tables, series and texts, with and without a temperature.

    python benchmarks/small_data.py                 # networks of six seeds: half an hour
    python benchmarks/small_data.py --seeds 0 --kinds tables

The data and networks are those of examples/plot_tabular.py, plot_time_series.py and plot_text.py; the latter needs
transformers. "Logits times 16": the same network, but ever more certain. "Arrived": within 0.05 nats of the uniform
prediction. "Known words": the share of a text's map on the words that its label was made of.
"""

import argparse
import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fringe

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = {"tables": "plot_tabular.py", "series": "plot_time_series.py", "texts": "plot_text.py"}
#: Beside the default; fringe.explain gives texts a temperature of 1 where none is set.
OTHERS = {"tables": 1.0, "series": 1.0, "texts": 3.0}


def example(kind: str, seed: int) -> dict[str, Any]:
    """The names that an example defines before it explains, for a network of this seed."""
    source = (EXAMPLES / FILES[kind]).read_text(encoding="utf-8").split("# %%\n# Explain")[0]
    names: dict[str, Any] = {"__name__": "example"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source.replace("manual_seed(0)", f"manual_seed({seed})"), FILES[kind], "exec"), names)
    return names


def explainer(kind: str, names: dict[str, Any]) -> Callable[[Any], fringe.Attribution]:
    """Explain an example's inputs by a method."""
    if kind == "tables":
        return lambda method: fringe.explain(names["model"], names["x"][::10], kind="tabular", method=method)
    if kind == "series":
        return lambda method: fringe.explain(names["model"], names["test"], kind="series", method=method)
    texts = [names["sentence"](names["rng"], i % 2) for i in range(30)]
    return lambda method: fringe.explain(names["model"], texts, tokenizer=names["tokenizer"], method=method)


def known_words(found: fringe.Attribution, names: dict[str, Any]) -> float:
    from fringe.text import merge_words

    shares = list[float]()
    for tokens, values in zip(found.context.features, found.values, strict=True):
        words, scores = merge_words(tokens, values)
        known = torch.tensor([word in names["GOOD"] + names["BAD"] for word in words])
        shares.append(float(scores[known].abs().sum() / scores.abs().sum()))
    return sum(shares) / len(shares)


def rows(kind: str, seeds: list[int]) -> Iterator[str]:
    for factor in (1, 16) if kind != "texts" else (1,):  # texts take hours
        measured: dict[str, list[tuple[float, ...]]] = {}
        for seed in seeds:
            names = example(kind, seed)
            last = [module for module in names["model"].modules() if isinstance(module, nn.Linear)][-1]
            with torch.no_grad():
                for parameter in last.parameters():
                    parameter *= factor
            explain = explainer(kind, names)
            other = OTHERS[kind]
            methods = {"`FRInGe()`": "fringe", f"`temperature={other:g}`": fringe.FRInGe(temperature=other), "IG": "ig"}
            for label, method in methods.items():
                found = explain(method)
                passes = (found.passes.forward + found.passes.jvp + found.passes.vjp) / len(found)
                ok, arrived = found.verdict.count("ok") / len(found), found.diagnostics["endpoint_kl"] <= 0.05
                words = known_words(found, names) if kind == "texts" else float("nan")
                measured.setdefault(label, []).append((passes, ok, arrived.double().mean().item(), words))
        for label, values in measured.items():
            passes, ok, arrived, words = torch.tensor(values).mean(0).tolist()
            last_column = "–" if words != words else f"{words:.2f}"
            yield f"| {kind} | {factor} | {label} | {passes:.0f} | {ok:.0%} | {arrived:.0%} | {last_column} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| inputs | logits times | method | passes | `ok` | arrived | known words |\n|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        for row in rows(kind, given.seeds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
