"""How far maps move when images or batches change by little, and what steadier paths change in the scores: the tables
of docs/results/steadiness.md.

python experiments/steadiness.py efficientnet_lite0 --images 12
python experiments/steadiness.py mobilenet_v2 --images 24 --offset 3 --scores
python experiments/steadiness.py --figure docs/images/steadiness.webp
"""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import fringe
from fringe._network.rectifiers import SHARPNESS
from fringe.attribution import Attributor, _fisher_rao, get_method
from fringe.attribution._fisher_rao import FisherRaoPath
from fringe.baselines import InputSpace
from fringe.data import find_inputs
from fringe.evaluation import paired
from fringe.metrics import EvaluationContext, evaluate, get_metric
from fringe.models import Preprocessing, load_model
from fringe.paths import Problem

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from shared_models import PREPROCESSING, SHARED, model  # pyright: ignore[reportMissingImports]

#: Lengths of the noise, as shares of the length of the image.
NOISE = 1e-6, 1e-3, 1e-2
DOCS = Path(__file__).parents[1] / "docs"
#: Images that are explained alone, too.
ALONE = 8


def network(name: str, side: int) -> tuple[torch.nn.Module, Preprocessing, str]:
    """A network with its preprocessing, and the folder of its images."""
    if name == "efficientnet_lite0":
        sizes = {"resize": (side * 256 // 224,), "crop": (side, side)}
        colours = {"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
        return load_model(name).module, Preprocessing(**sizes, **colours, interpolation="bicubic"), "imagenet"
    if name.startswith("cifar"):
        return model(name), PREPROCESSING["cifar"], "cifar10"
    plain = f"resize={side * 256 // 224},crop={side},mean=0.5/0.5/0.5,std=0.5/0.5/0.5"
    return model(name), Preprocessing.parse(plain), "imagenet"


@contextmanager
def former():
    """Directions of one step alone, with slopes that jump."""
    with patch.object(_fisher_rao, "MEMORY", 0.0), patch.object(FisherRaoPath, "smooth_slopes", False):
        yield


def distance(one: Tensor, other: Tensor) -> float:
    """The median over images of |one - other| / |one|."""
    one, other = (t.flatten(1).double() for t in (one, other))
    return ((one - other).norm(dim=1) / one.norm(dim=1)).median().item()


def row(explain: Callable[[fringe.Classifier, Tensor], Any], classifier: fringe.Classifier, x: Tensor) -> list[str]:
    """The cells of a row."""
    found = explain(classifier, x)
    passes = (found.passes.forward + found.passes.jvp + found.passes.vjp) / len(x)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    noise *= (x.flatten(1).norm(dim=1) / math.sqrt(x[0].numel())).view(-1, 1, 1, 1)
    moved = [distance(found.values, explain(classifier, x + size * noise).values) for size in NOISE]
    few = min(len(x), ALONE)
    alone = torch.cat([explain(classifier, x[i : i + 1]).values for i in range(few)])
    moved.append(distance(found.values[:few], alone))
    return [f"{passes:.1f}", f"{found.verdict.count('ok')} of {len(x)}", *(f"{value:.2g}" for value in moved)]


def scores(explain: Callable[[fringe.Classifier, Tensor], Any], classifier: fringe.Classifier, x: Tensor) -> Any:
    """The scores (B,) of the maps by the names of the metrics."""
    space = InputSpace(x.amin(), x.amax())
    context = EvaluationContext(Problem.of(classifier, x, target=classifier.logits(x).argmax(1), domain=space))
    names = [
        f"{kind}{end}" for kind in ("insertion", "deletion", "mas_insertion", "mas_deletion") for end in ("", ":zero")
    ]
    metrics = {name: get_metric(name).with_text({"steps": "12"}) for name in names} | {"road": get_metric("road")}
    found = evaluate(context, explain(classifier, x).values, metrics)
    return {name: score.values.double().numpy() for name, score in found.items()}


def draw(file: Path) -> None:
    """The slope of a rectifier, and how far noise of one millionth moves maps: from the tables of the page."""
    from matplotlib import pyplot

    figure, (slope, moved) = pyplot.subplots(1, 2, figsize=(8.5, 2.6), layout="constrained")
    x = torch.linspace(-0.6, 0.6, 241)
    slope.plot(x, (x > 0).float(), color="0.6", label="of ReLU")
    slope.plot(x, torch.sigmoid(SHARPNESS * x), color="tab:blue", label="in the direction")
    slope.set(xlabel="input of the rectifier", ylabel="slope", title="The slope of a rectifier")
    slope.legend(frameon=False, loc="upper left", fontsize=8)
    page = (DOCS / "results" / "steadiness.md").read_text(encoding="utf-8")
    names, rows = list[str](), dict[str, list[float]]()
    for line in page.splitlines():
        if line.startswith("## "):
            names.append(line[3:].partition(",")[0])
        elif line.startswith("| ") and line.count("|") == 8 and "---" not in line and "passes" not in line:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows.setdefault(cells[0].replace("`", ""), []).append(float(cells[3]))
    colours = {"without the three": "0.6", "FRInGe()": "tab:blue", "ig, 50 steps": "tab:orange"}
    for name, colour in colours.items():
        moved.plot(rows[name], range(len(rows[name]))[::-1], "o", color=colour, label=name)
    moved.set_yticks(range(len(rows["FRInGe()"])), names[: len(rows["FRInGe()"])][::-1])
    moved.set(
        xscale="log",
        ylim=(-0.5, len(rows["FRInGe()"]) - 0.5),
        xlabel="distance of two maps (lower is steadier)",
        title="Noise of one millionth",
    )
    moved.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", help="cifar_resnet20, mobilenet_v1_025, mobilenet_v2, efficientnet_lite0")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--offset", type=int, default=7, help="the first image; then evenly over the folder")
    parser.add_argument("--side", type=int, default=128, help="pixels of the side of a photograph")
    parser.add_argument("--scores", action="store_true", help="differences of scores in place of distances")
    parser.add_argument("--figure", type=Path, help="draw the page's tables into this file")
    given = parser.parse_args()
    if given.figure:
        draw(given.figure)
        return
    module, preprocessing, folder = network(given.network, given.side)
    references = list(find_inputs([str(SHARED / "images" / folder)]))
    chosen = references[given.offset :: max(1, len(references) // given.images)][: given.images]
    pictures = [ref.open(channels=3, exif="ignore").image for ref in chosen]
    x = torch.stack([preprocessing.normalise(preprocessing.pixels(picture)) for picture in pictures])
    classifier = fringe.Classifier(module.requires_grad_(False).eval(), fold_batch_norm=True)

    def by(method: str | Attributor) -> Callable[[fringe.Classifier, Tensor], Any]:
        return lambda model, images: fringe.attribute(model, images, method=get_method(method))

    def before(model: fringe.Classifier, images: Tensor) -> Any:
        cap = 0.01 * math.sqrt(images[0].numel())
        with former():
            return by(fringe.FRInGe(gamma_prior=3e-4, delta_euc=cap))(model, images)

    if given.scores:
        now, then = scores(by("fringe"), classifier, x), scores(before, classifier, x)
        for name in now:
            gain = paired(now[name], then[name])
            print(
                f"| `{name}` | {then[name].mean():.3f} | {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] |",
                flush=True,
            )
        return
    print("| | passes | `ok` | noise 1e-6 | noise 0.1% | noise 1% | alone |")
    print("|---|---|---|---|---|---|---|")
    rows = {"`FRInGe()`": by("fringe"), "without the three": before, "`fringe:fast`": by("fringe:fast")}
    for name, explain in {**rows, "`ig`, 50 steps": by(fringe.IntegratedGradients(50))}.items():
        print(f"| {name} | {' | '.join(row(explain, classifier, x))} |", flush=True)


if __name__ == "__main__":
    main()
