"""Make the figures of docs/figures.md from runs of the library.

    python scripts/figures.py algorithm methods failures     # six photographs: minutes
    python scripts/figures.py price                          # the stored run of a table of docs/results: seconds

Maps and scores are stored in out/figures; what is there is drawn, and not computed again. Needs the packages of the
extra ``photo``, scikit-image and scikit-learn. Look at what it writes before you commit it.
"""

import argparse
import io
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

import fringe
from fringe.bench.experiments import Results, Store, read_results
from fringe.bench.scenes import Example, get_scene
from fringe.evaluation import estimate
from fringe.geometry import geodesic
from fringe.models import load_model
from fringe.plots import blend
from fringe.plots._maps import amplified

IMAGES, OUT = Path(__file__).parents[1] / "docs" / "images", Path("out", "figures")
#: Photographs in packages that may be shown here: docs/figures.md has their authors and licences.
PHOTOGRAPHS = (
    *(("fringe.data", "coffee.jpg"), ("fringe.data", "cat.jpg"), ("skimage.data", "camera.png")),
    *(("sklearn.datasets.images", "flower.jpg"), ("skimage.data", "rocket.jpg")),
    ("sklearn.datasets.images", "china.jpg"),
)
FILES = [str(resources.files(package).joinpath(name)) for package, name in PHOTOGRAPHS]
COFFEE, CAT, CAMERA, FLOWER, _, PALACE = range(6)
mpl.rcParams.update({"font.size": 8, "axes.titlesize": 9, "axes.labelsize": 9, "legend.frameon": False})
BLUE, RED, GREY, ORANGE, RULE = "#0072b2", "#d55e00", "#5f6773", "#e69f00", "#c9ced6"
#: A frame in photographs: a colour that none of them has.
FRAME = "#c2185b"
#: Right and up on a sphere that is seen a little from the side.
VIEW = np.array([[-0.6, 0.8, 0.0], [-0.322, -0.242, 0.915]])
SCORES, BLIND = {"road": "ROAD", "signed_insertion": "Signed insertion"}, ("zero", "random", "uniform", "edge")
#: Where the name of a point stands, in points from it, and titles of methods.
PLACES = {
    **{"fringe:fast": (6, -14), "smoothgrad": (-6, -12), "ig": (-6, 5), "diffusion": (-6, -14)},
    "blur_ig": (6, 8),
}
NAMES = {
    **{"fringe": "FRInGe", "fringe:fast": "FRInGe, fast", "ig": "IG", "smoothgrad": "SmoothGrad", "blur_ig": "Blur IG"},
    **{"guided_ig": "Guided IG", "guided_ig:quick": "Guided IG", "gradcam": "Grad-CAM", "diffusion": "diffusion"},
    "rise": "RISE",
}


def explained(path: Path, *model_and_inputs: Any, **given: Any) -> fringe.Attribution:
    """Return the maps of a file, or make and store them."""
    path = path.with_name(f"{path.name}.safetensors".replace(":", "-"))
    if not path.exists():
        print(f"computing {path.stem} ...", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        fringe.explain(*model_and_inputs, **given).save(path)
    return fringe.load(path)


def store(figure: Figure, name: str) -> None:
    """Store a figure as WebP, in the documentation."""
    drawn, path = io.BytesIO(), IMAGES / f"{name}.webp"
    figure.savefig(drawn, dpi=130, facecolor="white")
    image = Image.open(drawn).convert("RGB")
    image.save(path, quality=62, method=6)
    print(f"{path.name}: {image.width} x {image.height}, {path.stat().st_size / 1000:.0f} KB")


def tile(axes: Axes, image: Any, title: str = "", below: str = "", beside: str = "") -> None:
    """Show an image with words around it."""
    axes.imshow(np.clip(image, 0, 1), cmap="gray", interpolation="nearest" if len(image) < 64 else "antialiased")
    axes.set_title(title)
    axes.set_xlabel(below, color=GREY, labelpad=3)
    axes.set_ylabel(beside)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def over(result: fringe.Attribution, row: int = 0) -> Any:
    """Return the strength of a map over its greyed input."""
    return blend(result.context.picture(result.context.inputs[row]), result.values[row].numpy())


def algorithm() -> None:
    """Draw a path of predictions on the sphere, and beside it the path of the photograph."""
    model, names = load_model("efficientnet_lite0"), ("espresso", "cup", "chocolate sauce")
    classes = [model.class_names.index(name) for name in names]
    given = {"preprocessing": model.preprocessing, "classes": list(names), "method": fringe.FRInGe(until="arrival")}
    result = explained(OUT / "algorithm", lambda x: model.module(x)[:, classes], FILES[COFFEE], **given)
    path, x, black = result.trajectory[0], result.context.inputs, model.prepare([Image.new("RGB", (320, 320))])
    with torch.no_grad():
        line = model.module(torch.cat([x + t * (black - x) for t in torch.linspace(0, 1, 41)]))[:, classes]
    line, taken = line.double().softmax(1).sqrt(), path.probabilities.double()
    uniform, share = torch.full_like(taken[0], 1 / 3), torch.linspace(0, 1, 50, dtype=torch.float64)
    ends = taken[0].sqrt(), uniform.sqrt()
    figure = Figure(figsize=(11.6, 4.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.75])
    axes = left.subplots()
    draw_sphere(axes, names)
    straight, shortest = taken[0] + share[:, None] * (uniform - taken[0]), geodesic(*ends, share)
    axes.plot(*seen(straight.sqrt()), "--", color=GREY, label="straight line of the probabilities")
    axes.plot(*seen(shortest), color=BLUE, lw=4, alpha=0.4, label="geodesic: the shortest way on the sphere")
    axes.plot(*seen(line), ":", color=ORANGE, lw=2, label="IG with a black image")
    axes.plot(*seen(taken.sqrt()), "o-", color=RED, ms=3.5, lw=1, label=f"FRInGe: {int(path.snapshot_steps[-1])} steps")
    for point, name, below in ((ends[0], "photograph", 12), (ends[1], "uniform", -3), (line[-1], "black", -3)):
        axes.plot(*seen(point), "o", color="black", ms=5, zorder=5)
        axes.annotate(name, seen(point), (7, -below), textcoords="offset points")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02))

    pictures = result.context.picture(path.snapshots)
    changes, factor = amplified([picture - pictures[0] for picture in pictures])
    rows = ("on the path", f"change × {factor}", "evidence\nso far")
    for k, column in enumerate(right.subplots(4, len(taken), height_ratios=[1, 1, 1, 0.6]).T):
        images = pictures[k], changes[k], blend(pictures[0], path.cumulative[k].numpy())
        for axes, image, name in zip(column[:3], images, rows, strict=True):
            tile(axes, image, beside="" if k else name)
        column[0].set_title(f"step {int(path.snapshot_steps[k])}" if k else "photograph")
        column[3].barh(range(3), taken[k], color=[RED, GREY, GREY])
        column[3].set(xlim=(0, 1), xticks=[], ylim=(2.6, -0.6))
        column[3].set_yticks([] if k else range(3), [] if k else names)
        column[3].tick_params(length=0)
        column[3].spines[:].set_visible(False)
        for place, share in enumerate(taken[k].tolist()):
            style = {"x": share - 0.04, "ha": "right", "color": "white"} if share > 0.5 else {"x": share + 0.04}
            column[3].text(y=place, s=f"{share:.0%}", va="center", **style)
    store(figure, "algorithm")


def seen(points: Any) -> tuple[Any, Any]:
    """Return where points (..., 3) of the sphere are in the picture."""
    return tuple(np.moveaxis(np.asarray(points) @ VIEW.T, -1, 0))


def draw_sphere(axes: Axes, names: tuple[str, ...]) -> None:
    """Draw the eighth of the sphere on which square roots of three probabilities lie."""
    angle, axis = np.linspace(0, np.pi / 2, 60), np.eye(3)
    circle = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
    axes.fill(*seen(np.concatenate([np.roll(circle, shift, 1) for shift in range(3)])), color="#eef2f7", zorder=0)
    for level in np.linspace(0, np.pi / 2, 7):
        ring = np.cos(level) * circle + np.sin(level) * axis[2]
        for shift in range(3):
            axes.plot(*seen(np.roll(ring, shift, 1)), color="white" if level else "#9aa3af", lw=1, zorder=1)
    for corner, name, place in zip(axis, names, ((-4, -14), (4, -14), (0, 6)), strict=True):
        axes.annotate(name, seen(corner), place, textcoords="offset points", ha="center", weight="bold")
    axes.set(aspect="equal", frame_on=False, xticks=[], yticks=[])


def methods() -> None:
    """Draw the maps of five methods on six photographs."""
    shown = ("fringe", "ig", "smoothgrad", "guided_ig:quick", "gradcam")
    results = [explained(OUT / f"methods-{method}", "efficientnet_lite0", FILES, method=method) for method in shown]
    context, figure = results[0].context, Figure(figsize=(9.2, 9.6), layout="constrained")
    for row, line in enumerate(figure.subplots(len(FILES), len(shown) + 1)):
        _, name, share = context.top(row, 1)[0]
        tile(line[0], context.picture(context.inputs[row]), "" if row else "photograph", f"{name}, {share:.0%}")
        for axes, method, result in zip(line[1:], shown, results, strict=True):
            tile(axes, over(result, row), "" if row else NAMES[method])
    store(figure, "methods")


def failures() -> None:
    """Draw where a method is wrong, and how one knows."""
    model, figure = load_model("efficientnet_lite0"), Figure(figsize=(8.4, 9.6))
    figure.set_layout_engine("constrained", h_pad=0.09)
    lines, sources = figure.subplots(4, 4), tuple(FILES[k] for k in (CAT, COFFEE, CAMERA, FLOWER))
    grid, fooled = get_scene("gridpg"), get_scene("fooled_cam")
    network = fooled.network(0, None, ())
    (mark,) = fooled.examples([network], (), 1, 0)
    cases = [
        ("tiger cat", "why “tiger cat”?", grid, Example("0", 282, "0", sources, {"cell": 0}), model),
        ("tripod", "why “tripod”?", grid, Example("2", 872, "2", sources, {"cell": 2}), model),
        ("mark", "it counts red pixels", fooled, mark, network),
    ]
    for line, (name, question, scene, example, used) in zip(lines[:3], cases, strict=True):
        x, truth = scene.make(example, used)
        for axes, method in zip(line[1:], ("gradcam", "fringe", "ig"), strict=True):
            given = {"method": method, "target": example.target, "preprocessing": used.preprocessing}
            result = explained(OUT / f"{scene.name}-{example.id}-{method}", used.module, x[None], **given)
            evidence = result.values[0].sum(0).clamp(min=0)
            tile(axes, over(result), NAMES[method], f"{(evidence * truth).sum() / evidence.sum():.0%} inside")
        tile(line[0], result.context.picture(x), question)
        frame(line[0], truth, name)
    for axes, method in zip(lines[3, 1:], ("fringe:fast", "fringe", "ig"), strict=True):
        result = explained(OUT / f"methods-{method}", "efficientnet_lite0", FILES, method=method)[PALACE]
        tile(axes, over(result), NAMES[method], f"{result.verdict[0]}: {result.completeness_residual[0]:.1%} missing")
    tile(lines[3, 0], result.context.picture(result.context.inputs[0]), "is the sum right?")
    store(figure, "failures")


def frame(axes: Axes, truth: torch.Tensor, name: str) -> None:
    """Draw a frame around the true pixels of a picture, with their name in it or, of few pixels, beside it."""
    (top, left), (bottom, right) = truth.nonzero().amin(0).tolist(), truth.nonzero().amax(0).tolist()
    corner, width, height = (left - 0.5, top - 0.5), right - left + 1, bottom - top + 1
    axes.add_patch(Rectangle(corner, width, height, fill=False, color=FRAME, lw=3, clip_on=False, zorder=5))
    inside = width > len(truth) / 3
    place = corner if inside else (right + 0.5, top - 0.5)
    style = {"color": "white", "weight": "bold", "bbox": {"color": FRAME, "pad": 1.5}, "zorder": 6}
    axes.annotate(name, place, (4 if inside else 5, -4), textcoords="offset points", va="top", **style)


def price() -> None:
    """Draw passes for an image against two scores of the run that makes the table of methods on ResNet-20."""
    results = read_results(Store(OUT.parent / "results" / "methods_cifar_resnet20", create=False))
    figure = Figure(figsize=(9.4, 4), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), SCORES, strict=True):
        draw_price(axes, results, metric)
    figure.supxlabel("forward and backward passes through the network for one image")
    store(figure, "price")


def draw_price(axes: Axes, results: Results, metric: str) -> None:
    """Draw methods as points with their intervals, and maps that do not look at the network as lines."""
    (model,), blind = results.models, dict[str, float]()
    for method in results.methods(model):
        found, rows = estimate(results.scores(model, method, metric)), results.map_frame(model, method)
        passes = float((rows["forward"] + rows["jvp"] + rows["vjp"]).mean())
        if method in BLIND:
            blind[method] = found.mean
        elif method in NAMES:
            colour = GREY if method == "diffusion" else RED if method in ("fringe", "fringe:fast") else BLUE
            axes.errorbar(passes, found.mean, [[found.mean - found.low], [found.high - found.mean]], color=colour, lw=1)
            axes.plot(passes, found.mean, "o", color=colour, mfc="white" if colour == GREY else colour, ms=6)
            place = PLACES.get(method, (6, 5))
            style = {"color": colour, "ha": "left" if place[0] > 0 else "right"}
            axes.annotate(NAMES[method], (passes, found.mean), place, textcoords="offset points", **style)
    for value in set(blind.values()):
        names = ", ".join(name for name in BLIND if blind[name] == value)
        axes.axhline(value, color=RULE, lw=1, zorder=0)
        axes.text(1900, value, names, ha="right", va="top" if "zero" in names else "bottom", color=GREY)
    axes.set_xscale("log")
    axes.set(xlim=(1, 2000), xticks=(ticks := [1, 3, 10, 30, 100, 300, 1000]), xticklabels=ticks)
    axes.minorticks_off()
    axes.set_title(f"{SCORES[metric]}, higher is better", fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Make the figures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=("algorithm", "methods", "failures", "price"))
    for name in parser.parse_args().names:
        {"algorithm": algorithm, "methods": methods, "failures": failures, "price": price}[name]()


if __name__ == "__main__":
    main()
