"""Which method finds the words that decide the next token, in scenes of language models: the table of
docs/kinds/texts.md.

    python experiments/prompts.py

Of each scene the first network chose the default (occlusion by a comma), and the table is that of the second one, which
has other prompts. It shows the share of the positive evidence on the words that decide, with 95% intervals.
"""

from collections.abc import Callable

import torch
from torch import Tensor

import fringe
from fringe.bench.scenes import get_scene
from fringe.bench.scenes._kinds import EMBEDDINGS
from fringe.evaluation import estimate
from fringe.evaluation._evaluator import TEXT_CONTROLS
from fringe.metrics import EvaluationContext, evaluate
from fringe.paths import Problem

SCENES, PROMPTS = ("copying", "lookup", "counting", "negation"), 16
#: What takes the place of a word: the first token of these scenes is a comma.
REFERENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "a comma": lambda x: EMBEDDINGS[0].expand_as(x),
    "the mean": lambda x: x.mean(1, keepdim=True).expand_as(x),
    "zeros": torch.zeros_like,
}
METHODS = {
    **{f"occlusion by {name}": ("captum:occlusion", name) for name in REFERENCES},
    **{f"IG from {name}": ("ig", name) for name in REFERENCES},
    "libra, IG from a comma": ("libra:ig", "a comma"),
    "kernel SHAP, a comma": ("captum:kernel_shap", "a comma"),
    "gradient × input": ("captum:input_x_gradient", None),
    "SmoothGrad": ("smoothgrad", None),
}


def column(name: str, number: int) -> dict[str, str]:
    """The cells of a scene by the titles of rows."""
    scene = get_scene(name)
    network = scene.network(number, None, [])
    examples = scene.examples([network], [], PROMPTS, number)
    x, truth = (torch.stack(parts) for parts in zip(*(scene.make(one, network) for one in examples), strict=True))
    target = torch.tensor([example.target for example in examples])
    problem = Problem.of(fringe.Classifier(network.module), x, target=target)
    maps = {"control: noise": torch.randn(x.shape, generator=torch.Generator().manual_seed(7))}
    maps |= {f"control: {label}": control(problem) for label, control in TEXT_CONTROLS.items()}
    for title, (method, reference) in METHODS.items():
        given = {} if reference is None else {"baseline": REFERENCES[reference](x)}
        maps[title] = fringe.attribute(
            network.module, x, method=method, target=target, score="log_probability", **given
        ).values
    cells = dict[str, str]()
    for title, values in maps.items():
        scores = evaluate(EvaluationContext(problem, truth), values, ["mass_inside"])["mass_inside"]
        found = estimate(scores.values.cpu().numpy())
        cells[title] = f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"
    return cells


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    columns = {name: column(name, 1) for name in SCENES}
    print(f"| | {' | '.join(f'`{name}`' for name in SCENES)} |")
    print(f"|---|{'---:|' * len(SCENES)}")
    for title in (*METHODS, *(f"control: {name}" for name in (*TEXT_CONTROLS, "noise"))):
        print(f"| {title} | {' | '.join(columns[name][title] for name in SCENES)} |")


if __name__ == "__main__":
    main()
