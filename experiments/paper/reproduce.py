"""Run the studies of the paper (arXiv 2605.06404), and set our numbers beside its own.

    python experiments/paper/reproduce.py tables --data imagenet/val --out out/paper
    python experiments/paper/reproduce.py ablation --data images --model resnet50=torchvision:resnet50 --n 16

comparison: eight methods under six metrics. ablation: the paper's method with parts taken out, and their paths. cap:
paths with and without the limit on the length of a step. max_sensitivity. sweep: one setting varied at a time. runtime:
times of maps. tables: all of these but the sweep. all: all of these. budget: methods at equal prices of a map.

Each network has a run folder in --out, which ``fringe report`` and ``fringe status`` read; an interrupted run goes on
by the same command. The page is reproduction.md. A search for a setting is ``fringe tune``.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paper_budget as budget
import paper_figures as figures
import paper_page as page
import paper_studies as studies
import paper_timing as timing
import torch

from fringe import FRInGe, InputError, InputSpace
from fringe.bench.experiments import ExperimentSpec, Results, estimate_run, run_experiment
from fringe.data import ImageRef, find_inputs
from fringe.errors import FringeError
from fringe.inputs import prepare
from fringe.models import LoadedModel, load_model

#: Images whose maps are timed in a study of its own.
TIMED = studies.SMALL


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=studies.GROUPS)
    parser.add_argument("--data", action="append", default=[], help="images or folders; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    parser.add_argument("--config", type=Path, help="a TOML file with options of an experiment, as of fringe benchmark")
    parser.add_argument("--model", action="append", default=[], help="LABEL=SPEC, or a network of the paper")
    parser.add_argument("--methods", help="LABEL=NAME with commas; the one with the label fringe is varied")
    parser.add_argument("--n", type=int, help="number of images; default: 1000, and 64 for the budget")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--set", action="append", default=[], help="LABEL.KEY=VALUE: a setting; may be repeated")
    parser.add_argument("--preprocessing", help="as of fringe benchmark")
    parser.add_argument("--trust-code", action="store_true", help="allow the model's author to run code")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--figures", type=int, default=2, help="images of a network whose paths are drawn")
    parser.add_argument("--price", choices=("passes", "seconds", "memory"), default="passes", help="of the budget")
    parser.add_argument("--dry-run", action="store_true", help="compute nothing: estimate passes and time")
    return parser.parse_args(words)


def given(options: argparse.Namespace) -> ExperimentSpec:
    """What the caller said, as a specification: the options over the file."""
    names = ("data", "model", "methods", "n", "seed", "set", "preprocessing", "trust_code")
    typed = {name: value for name in names if (value := getattr(options, name))}
    spec = ExperimentSpec(**typed)
    return spec if options.config is None else spec.over(ExperimentSpec.from_file(options.config))


def images(spec: ExperimentSpec) -> list[ImageRef]:
    """The images that are drawn and timed, in an order that the seed draws."""
    refs = list(find_inputs(list(spec.data)))
    random.Random(spec.seed).shuffle(refs)
    return refs


def stacked(model: LoadedModel, refs: Sequence[ImageRef], device: str) -> torch.Tensor:
    """Images as the model takes them (B, C, H, W)."""
    x = torch.stack([prepare(ref, model.preprocessing, "ignore") for ref in refs])
    return x.to(_device(device))


def score(spec: ExperimentSpec, label: str, names: tuple[str, ...], options: argparse.Namespace) -> dict[str, Results]:
    """Run the studies of a network."""
    run = {"device": options.device, "batch_size": options.batch_size}
    found = {}
    for name, study in studies.studies(spec, label, names).items():
        print(f"{label}: {name}", flush=True)
        found[name] = run_experiment(study, options.out / label, progress=True, **run)
    return found


def paths(spec: ExperimentSpec, label: str, study: str, options: argparse.Namespace) -> list[Path]:
    """Draw the paths of the ablation or the cap on the first images of a network."""
    methods, _, _ = studies.of_network(spec, label)
    base = studies.base_method(methods)
    shown = {**studies.capped(base), "ig": methods["ig"]} if study == "cap" else studies.ablation(base)
    model = _load(spec, label)
    module = model.module.to(_device(options.device))
    drawn = list[Path]()
    for i, ref in enumerate(images(spec)[: options.figures], 1):
        x = stacked(model, [ref], options.device)
        space = _space(model, x)
        records = [figures.path_record(name, one, module, x, space, spec.seed) for name, one in shown.items()]
        path = options.out / "figures" / f"{study}-{label}-{i}.png"
        drawn.append(figures.draw_paths(study, [r for r in records if r is not None], f"{label}: {ref.id}", path))
    return drawn


def times(spec: ExperimentSpec, label: str, options: argparse.Namespace) -> list[timing.Timing]:
    """Run times of the paper's method, of ours and of IG; those of an earlier call are read."""
    path = options.out / f"runtime-{label}.json"
    methods, _, _ = studies.of_network(spec, label)
    timed = {"fringe": studies.base_method(methods), "ig": methods["ig"], studies.DEFAULT: FRInGe()}
    model, refs = _load(spec, label), images(spec)[: min(spec.n, TIMED)]
    x, key = (
        stacked(model, refs, options.device),
        timing.key_of(timed, [ref.source for ref in refs], options.batch_size),
    )
    if known := timing.stored(path, key):
        return known
    x = stacked(model, refs, options.device)
    model.module.to(x.device)
    common = {"seed": spec.seed, "space": _space(model, x)}
    found = timing.measure(model, x, timed, "sequential", **common)
    found += timing.measure(model, x, timed, "batched", options.batch_size, **common)
    timing.store(path, key, found)
    return found


def at_equal_prices(options: argparse.Namespace) -> list[Path]:
    """Run the study of budgets for each network; a page and a figure for each."""
    asked = given(options)
    methods = asked.methods if "methods" in asked.model_fields_set else budget.METHODS
    metrics = asked.metrics if asked.metrics is not None else budget.METRICS
    fields = {name: getattr(asked, name) for name in asked.model_fields_set}
    fields |= {"name": "budget", "methods": methods, "metrics": metrics, "limits": {}, "n": fields.get("n", 64)}
    spec = studies.with_defaults(ExperimentSpec(**{"controls": True, **fields}))
    if options.price != "passes" and _device(options.device).type != "cuda":
        message = f"{options.price!r} is measured on a GPU"
        raise InputError(message, argument="price", hint="use --price passes, which every machine counts alike")
    written = list[Path]()
    for label in spec.model:
        configured, scored_by, alone = studies.of_network(spec, label)
        refs = images(spec)
        scored, choosing = refs[: spec.n], refs[spec.n : spec.n + budget.CHOOSING]
        if not choosing:
            message = f"got {len(refs)} images, and prices are measured on others than the {spec.n} that are scored"
            raise InputError(message, argument="n", hint=f"take --n {len(refs) - budget.CHOOSING}")
        path, model = options.out / f"prices-{label}.json", _load(spec, label)
        every = {entry.name: entry.method for entry in budget.settings(configured)}
        key = timing.key_of(every, [ref.source for ref in choosing], options.batch_size)
        if not (prices := timing.stored(path, key)):
            x = stacked(model, choosing, options.device)
            model.module.to(x.device)
            common = {"seed": spec.seed, "space": _space(model, x)}
            prices = timing.measure(model, x, every, "single", options.batch_size, **common)
            timing.store(path, key, prices)
        entries = budget.choose(configured, prices, options.price)
        fields = {name: getattr(alone, name) for name in alone.model_fields_set}
        fields |= {"data": [ref.source for ref in scored], "n": len(scored), "set": {}, "metrics": scored_by}
        study = ExperimentSpec(**fields | {"methods": {entry.name: entry.method for entry in entries}})
        run = {"device": options.device, "batch_size": options.batch_size}
        results = run_experiment(study, options.out / label, progress=True, **run)
        figure = budget.draw_budget(label, entries, results, options.out / f"budget-{label}.png")
        text = budget.budget_page(label, entries, results, options.price, figure.name, spec.seed)
        written.append(options.out / f"budget-{label}.md")
        written[-1].write_text(text, encoding="utf-8")
    return written


def reproduce(options: argparse.Namespace) -> list[Path]:
    """Run a study, or all, for each network; the page, with the figures."""
    asked = given(options)
    spec, names = studies.with_defaults(asked), studies.GROUPS[options.study]
    results, timings, drawn = dict[tuple[str, str], Results](), dict[str, list[timing.Timing]](), list[Path]()
    lines = {}
    for label in spec.model:
        for study, found in score(spec, label, names, options).items():
            results[label, study] = found
        for study in ("ablation", "cap"):
            drawn += paths(spec, label, study, options) if study in names else []
        if "sweep" in names:
            methods, _, _ = studies.of_network(spec, label)
            lines[label] = figures.sweep(studies.base_method(methods), results[label, "sweep"], label)
        if "runtime" in names:
            timings[label] = times(spec, label, options)
            print("\n".join(map(str, timings[label])), flush=True)
        if lines:
            figures.draw_sweep(lines, options.out / "figures" / "sweep.png")
        rows = page.compare_with_paper(results, timings, spec.seed)
        notes = page.protocol({label: str(model) for label, model in spec.model.items()}, spec.n, spec.data, spec.seed)
        shown = [str(path.relative_to(options.out)) for path in drawn] + (["figures/sweep.png"] if lines else [])
        text = page.page(rows, notes, studies.overridden(spec, asked), shown)
        written = page.write_page(options.out, text, rows)  # after each network: all take days
    return [written, *drawn]


def estimate(options: argparse.Namespace) -> None:
    """Print the passes and the time of what is missing."""
    spec, hours = studies.with_defaults(given(options)), 0.0
    for label in spec.model:
        for name, study in studies.studies(spec, label, studies.GROUPS[options.study]).items():
            known = estimate_run(study, options.out / label, device=options.device, progress=True)
            hours += known.seconds / 3600
            print("\n".join([f"{label}, {name}", *(f"  {cost.describe()}" for cost in known.methods)]), flush=True)
    print(f"in all about {hours:.2g} hours, one map after the other; run times are not in it")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = arguments(words)
    try:
        if options.study == "budget":
            if options.dry_run:
                message = "the study of budgets begins with measurements that decide what it computes"
                raise InputError(message, argument="dry_run", hint="leave it out")
            written = at_equal_prices(options)
        elif options.dry_run:
            estimate(options)
            return 0
        else:
            written = reproduce(options)
    except FringeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, written)))
    return 0


def _load(spec: ExperimentSpec, label: str) -> LoadedModel:
    model: Any = spec.model[label]
    if isinstance(model, LoadedModel):
        return model
    return load_model(model, preprocessing=spec.preprocessing, trust_code=spec.trust_code)


def _space(model: LoadedModel, x: torch.Tensor) -> InputSpace:
    return InputSpace(*(bound.to(x.device) for bound in model.preprocessing.bounds()))


def _device(name: str) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


if __name__ == "__main__":
    sys.exit(main())
