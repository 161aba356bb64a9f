"""How far maps move when images, batches or the rounding change by little, and what the three rules of a steadier path
change in scores and on known truths: the tables of docs/results/steadiness.md.

python experiments/steadiness.py efficientnet_lite0 --images 6 --rows 'FRInGe|without|fast|ig'
python experiments/steadiness.py mobilenet_v2 --images 24 --offset 3 --scores
python experiments/steadiness.py --truth
python experiments/steadiness.py --figure docs/images/steadiness.webp
"""

import argparse
import copy
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

import fringe
from fringe._network.rectifiers import SHARPNESS
from fringe.attribution import Attribution, Attributor, _fisher_rao, get_method
from fringe.attribution._fisher_rao import FisherRaoPath
from fringe.baselines import InputSpace
from fringe.bench.scenes import get_scene
from fringe.data import ImageRef, find_inputs
from fringe.evaluation import paired
from fringe.metrics import EvaluationContext, evaluate, get_metric
from fringe.models import Preprocessing, load_model
from fringe.paths import Problem

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from shared_models import PREPROCESSING, SHARED, model  # pyright: ignore[reportMissingImports]

#: Lengths of the noise, as shares of the length of the image.
NOISE = 1e-6, 1e-3, 1e-2
PAGE = Path(__file__).parents[1] / "docs" / "results" / "steadiness.md"
#: Images that are explained alone, too.
ALONE = 8
#: Classes of the rows with several.
CLASSES = 3
#: Scenes of known truths with the numbers of their networks, and other strengths of the prior.
SCENES = {"blockdigits": (0, 1), "watermark": (0,), "xai_tris": (0, 1)}
PRIORS = 3e-4, 1e-3

#: Explains images for classes chosen by their ``logits`` (B, C), so that a change of an image changes no class:
#: ``explain(classifier, x, logits)``.
Explain = Callable[[fringe.Classifier, Tensor, Tensor], Attribution]


# -- networks ---------------------------------------------------------------------------------------------------------


def with_gelu(module: nn.Module) -> nn.Module:
    """A copy of a network with GELU in place of ReLU."""
    traced = torch.fx.symbolic_trace(copy.deepcopy(module))
    for node in traced.graph.nodes:
        if node.target is functional.relu:
            node.target, node.kwargs = functional.gelu, {}
    traced.recompile()
    return traced


def train(module: nn.Module, x: Tensor, target: Tensor, epochs: int, rate: float) -> nn.Module:
    """Train a network on images, shifted by up to two pixels; ``target`` (N, C) has probabilities."""
    module.requires_grad_(True).train()
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(module.parameters(), rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * math.ceil(len(x) / 64))
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(64):
            shift = torch.randint(-2, 3, (2,), generator=generator).tolist()
            loss = functional.cross_entropy(module(x[rows].roll(shift, (2, 3))), target[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return module


def opened(references: Sequence[ImageRef], preprocessing: Preprocessing) -> Tensor:
    channels = preprocessing.channels
    pictures = [ref.open(channels=channels, exif="ignore").image for ref in references]
    return torch.stack([preprocessing.normalise(preprocessing.pixels(picture)) for picture in pictures])


def network(name: str, side: int) -> tuple[nn.Module, Preprocessing, list[ImageRef]]:
    """A network with its preprocessing, and the images that it may be judged on."""
    folder = "cifar10" if name.startswith(("cifar", "gelu")) else "imagenet"
    references = list(find_inputs([str(SHARED / "images" / folder)]))
    if name == "gelu_resnet20":  # learnt from the network with ReLU on four fifths of the images
        unseen = references[::5]
        x = opened([ref for ref in references if ref not in unseen], PREPROCESSING["cifar"])
        teacher = model("cifar_resnet20")
        module = train(with_gelu(teacher), x, teacher(x).softmax(1), 6, 2e-3).eval()
        with torch.no_grad():
            predicted = module(opened(unseen, PREPROCESSING["cifar"])).argmax(1)
        right = (predicted == torch.tensor([ref.label for ref in unseen])).float().mean().item()
        print(f"right on {right:.1%} of {len(unseen)} images that it was not trained on", flush=True)
        return module, PREPROCESSING["cifar"], unseen
    if name == "efficientnet_lite0":
        sizes = {"resize": (side * 256 // 224,), "crop": (side, side)}
        colours = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
        return load_model(name).module, Preprocessing(**sizes, **colours, interpolation="bicubic"), references
    if name.startswith("cifar"):
        return model(name), PREPROCESSING["cifar"], references
    plain = f"resize={side * 256 // 224},crop={side},mean=0.5/0.5/0.5,std=0.5/0.5/0.5"
    return model(name), Preprocessing.parse(plain), references


# -- paths ------------------------------------------------------------------------------------------------------------


def by(method: str | Attributor, *, classes: int = 1, has_mean: bool = True, is_smooth: bool = True) -> Explain:
    """Explain the most probable classes; without a mean, by directions of one step alone, and if not smooth, by slopes
    that jump."""

    def explain(classifier: fringe.Classifier, x: Tensor, logits: Tensor) -> Attribution:
        target = logits.argmax(1) if classes == 1 else logits.topk(classes).indices
        with ExitStack() as stack:
            if not has_mean:
                stack.enter_context(patch.object(_fisher_rao, "MEMORY", 0.0))
            if not is_smooth:
                stack.enter_context(patch.object(FisherRaoPath, "smooth_slopes", False))
            return fringe.attribute(classifier, x, method=get_method(method), target=target)

    return explain


def former(method: str, classes: int = 1) -> Explain:
    """Explain without the three rules."""

    def explain(classifier: fringe.Classifier, x: Tensor, logits: Tensor) -> Attribution:
        before: Any = replace(get_method(method), gamma_prior=3e-4, delta_euc=0.01 * math.sqrt(x[0].numel()))
        return by(before, classes=classes, has_mean=False, is_smooth=False)(classifier, x, logits)

    return explain


def rows() -> dict[str, Explain]:
    """The rows of a table of distances."""
    found = {"`FRInGe()`": by("fringe"), "without smooth slopes": by("fringe", is_smooth=False)}
    found |= {"without the three": former("fringe"), "`fringe:fast`": by("fringe:fast")}
    found |= {"`ig`, 50 steps": by(fringe.IntegratedGradients(50))}
    for title, name, classes in (
        ("`fringe_b`", "fringe_b", 1),
        ("`fringe:focused`", "fringe:focused", 1),
        (f"{CLASSES} classes", "fringe", CLASSES),
    ):
        found |= {title: by(name, classes=classes), f"{title}, without the three": former(name, classes)}
    return found | {f"`{name}`": by(name) for name in ("diffusion", "power(1.5):fringe")}


# -- tables -----------------------------------------------------------------------------------------------------------


def distance(one: Tensor, other: Tensor) -> float:
    """The median over images of |one - other| / |one|."""
    one, other = (t.flatten(1).double() for t in (one, other))
    return ((one - other).norm(dim=1) / one.norm(dim=1)).median().item()


def cells(explain: Explain, classifier: fringe.Classifier, precise: fringe.Classifier, x: Tensor) -> list[str]:
    """The cells of a row; ``precise`` is the network in float64."""
    logits = classifier.logits(x)
    found = explain(classifier, x, logits)
    passes = (found.passes.forward + found.passes.jvp + found.passes.vjp) / len(x)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    noise *= (x.flatten(1).norm(dim=1) / math.sqrt(x[0].numel())).view(-1, 1, 1, 1)
    others = [explain(classifier, x + size * noise, logits).values for size in NOISE]
    each = range(min(len(x), ALONE))
    others.append(torch.cat([explain(classifier, x[i : i + 1], logits[i : i + 1]).values for i in each]))
    others.append(explain(classifier, x.flip(0), logits.flip(0)).values.flip(0))
    others.append(explain(precise, x.double(), logits).values)
    moved = [f"{distance(found.values[: len(other)], other):.2g}" for other in others]
    return [f"{passes:.1f}", f"{found.verdict.count('ok')} of {len(x)}", *moved]


def print_distances(
    classifier: fringe.Classifier, precise: fringe.Classifier, x: Tensor, explains: Mapping[str, Explain]
) -> None:
    fringe.attribute(classifier, x[:1])  # which checks the network once, and that is no price of a row
    print("| | passes | `ok` | noise 1e-6 | noise 0.1% | noise 1% | alone | order | float64 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, explain in explains.items():
        print(f"| {name} | {' | '.join(cells(explain, classifier, precise, x))} |", flush=True)


def print_scores(method: str, classifier: fringe.Classifier, x: Tensor) -> None:
    """Print what the three rules change in scores of maps of the predicted class."""
    logits, space = classifier.logits(x), InputSpace(x.amin(), x.amax())
    context = EvaluationContext(Problem.of(classifier, x, target=logits.argmax(1), domain=space))
    names = [
        f"{kind}{end}" for kind in ("insertion", "deletion", "mas_insertion", "mas_deletion") for end in ("", ":zero")
    ]
    metrics = {name: get_metric(name).with_text({"steps": "12"}) for name in names} | {"road": get_metric("road")}
    maps = [explain(classifier, x, logits).values for explain in (by(method), former(method))]
    now, then = (evaluate(context, values, metrics) for values in maps)
    print("| | without the three | difference |\n|---|---:|---:|")
    for name in metrics:
        values, before = (found[name].values.double().numpy() for found in (now, then))
        gain = paired(values, before)
        print(f"| `{name}` | {before.mean():.3f} | {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] |", flush=True)


def print_truths(count: int) -> None:
    """Print the share of the positive map on what trained networks are known to use."""
    chosen: dict[str, Explain] = {"without the three": former("fringe"), "`FRInGe()`": by("fringe")}
    chosen |= {f"γ_prior = {prior:.0e}": by(fringe.FRInGe(gamma_prior=prior)) for prior in PRIORS}
    print(f"| scene, network | {' | '.join(chosen)} | difference |\n|---|{'---:|' * (len(chosen) + 1)}")
    for name, numbers in SCENES.items():
        scene: Any = replace(get_scene(name), networks=len(numbers))  # pyright: ignore[reportArgumentType]
        for number in numbers:
            loaded = scene.network(number, None, ())
            made = scene.examples([loaded], (), count, 0)
            x, truth = (torch.stack(part) for part in zip(*(scene.make(one, loaded) for one in made), strict=True))
            target = torch.tensor([one.target for one in made])
            classifier = fringe.Classifier(loaded.module, fold_batch_norm=True)
            context = EvaluationContext(Problem.of(classifier, x, target=target), truth)
            logits = functional.one_hot(target, classifier.logits(x).shape[1])
            metrics = {"mass_inside": get_metric("mass_inside")}
            found = [
                evaluate(context, explain(classifier, x, logits).values, metrics)["mass_inside"].values.double().numpy()
                for explain in chosen.values()
            ]
            gain = paired(found[1], found[0])
            row = [f"{values.mean():.3f}" for values in found]
            row.append(f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]")
            print(f"| `{name}`, {number} | {' | '.join(row)} |", flush=True)


def draw(file: Path) -> None:
    """The slope of a rectifier, and how far noise of one millionth moves maps: from the tables of the page."""
    from matplotlib import pyplot

    figure, (slope, moved) = pyplot.subplots(1, 2, figsize=(8.5, 2.6), layout="constrained")
    x = torch.linspace(-0.6, 0.6, 241)
    slope.plot(x, (x > 0).float(), color="0.6", label="of ReLU")
    slope.plot(x, torch.sigmoid(SHARPNESS * x), color="tab:blue", label="in the direction")
    slope.set(xlabel="input of the rectifier", ylabel="slope", title="The slope of a rectifier")
    slope.legend(frameon=False, loc="upper left", fontsize=8)
    network, tables = "", dict[str, dict[str, float]]()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            network = line[3:].partition(",")[0] if line.endswith("photographs") else ""
        elif network and line.startswith("| ") and "passes" not in line:
            found = [cell.strip() for cell in line.strip("|").split("|")]
            tables.setdefault(network, {})[found[0].replace("`", "")] = float(found[3])
    places = {name: place for place, name in enumerate(reversed(tables))}
    for row, colour in {"without the three": "0.6", "FRInGe()": "tab:blue", "ig, 50 steps": "tab:orange"}.items():
        some = {name: table[row] for name, table in tables.items() if row in table}
        moved.plot(list(some.values()), [places[name] for name in some], "o", color=colour, label=row)
    moved.set_yticks(list(places.values()), list(places))
    moved.set(
        xscale="log",
        ylim=(-0.5, len(places) - 0.5),
        xlabel="distance of two maps (lower is steadier)",
        title="Noise of one millionth",
    )
    moved.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = "cifar_resnet20, gelu_resnet20, mobilenet_v1_025, mobilenet_v2, efficientnet_lite0"
    parser.add_argument("network", nargs="?", help=known)
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--offset", type=int, default=7, help="the first image; then evenly over the folder")
    parser.add_argument("--side", type=int, default=128, help="pixels of the side of a photograph")
    parser.add_argument("--rows", default="", help="only the rows whose names match this regular expression")
    parser.add_argument("--scores", action="store_true", help="differences of scores in place of distances")
    parser.add_argument("--method", default="fringe", help="of the scores")
    parser.add_argument("--truth", action="store_true", help="shares of maps on what networks are known to use")
    parser.add_argument("--figure", type=Path, help="draw the page's tables into this file")
    given = parser.parse_args()
    if given.figure:
        draw(given.figure)
        return
    if given.truth:
        print_truths(given.images)
        return
    module, preprocessing, references = network(given.network, given.side)
    chosen = references[given.offset :: max(1, len(references) // given.images)][: given.images]
    x, module = opened(chosen, preprocessing), module.requires_grad_(False).eval()
    classifier = fringe.Classifier(module, fold_batch_norm=True)
    if given.scores:
        print_scores(given.method, classifier, x)
    else:
        precise = fringe.Classifier(copy.deepcopy(module).double(), fold_batch_norm=True)
        chosen_rows = {name: explain for name, explain in rows().items() if re.search(given.rows, name)}
        print_distances(classifier, precise, x, chosen_rows)


if __name__ == "__main__":
    main()
