"""What was computed, and how: the words of a report that come from the plan's record."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import fringe
from fringe._tables import Table
from fringe._text import counted
from fringe.attribution import setting_title
from fringe.bench.experiments import Manifest, Results, mixed
from fringe.bench.report._render import Section

_SCORES = {"logit": "logit", "log_probability": "log probability", "probability": "probability"}


def header(results: Results) -> dict[str, str]:
    """Return the first lines of a report."""
    plan, models = results.manifest.plan, results.models
    return {
        "Model" if len(models) == 1 else "Models": ", ".join(models),
        "Images": str(len(results.manifest.images)),
        "Seed": str(plan["seed"]),
        "Methods": ", ".join(dict.fromkeys(m for model in models for m in results.methods(model, controls=False))),
        "Metrics": str(len(results.metrics)),
        "Data": ", ".join(plan["data"]) or "made by the scenes",
    }


def protocol(results: Results) -> tuple[str, ...]:
    """Return how images, targets and scores were obtained, in sentences."""
    manifest, plan = results.manifest, results.manifest.plan
    whatever = ", whatever the model predicts."
    targets = {
        "predicted": "Each image is explained for the class that the model predicts on it (top 1 on the clean image), "
        "and the class is the same for all methods and metrics.",
        "label": f"Each image is explained for the class that its label names{whatever}",
    }
    target = targets.get(plan["target"], f"Each image is explained for class {plan['target']}{whatever}")
    target = "Each example is explained for the class that its scene sets." if manifest.scenes else target
    source = ("the data itself" if plan["data"] else "nowhere") if plan["references"] is None else plan["references"]
    score = f"The explained score is the class's {_SCORES[plan['score']]}. Reference images come from {source}."
    sentences = [_images(manifest), target, score]
    fewer = [
        f"{metric['title']} on the first {metric['limit']}"
        for metric in manifest.metrics.values()
        if metric["limit"] < min(manifest.plan["n"], len(manifest.images))
    ]
    if fewer:
        sentences.append(f"Some metrics are computed on fewer images: {', '.join(fewer)}.")
    controls = sorted({m for model in results.models for m in results.methods(model) if results.is_control(m)})
    if controls:
        path = "; only diffusion runs it, along a path that ignores it" if "diffusion" in controls else ""
        made = "; those named MODIFIER:METHOD are made of the map of this method, and concern it alone"
        made = made if any(":" in name for name in controls) else ""
        sentences.append(
            f"Control maps ({', '.join(controls)}) stand below the methods. A score says little unless it is "
            f"better than theirs. They do not depend on the model{path}{made}."
        )
    sentences.append(
        "All methods get the same images, targets and noise; differences between them are paired by image."
    )
    several = mixed(results.versions)
    if several:
        sentences.append(
            f"Results of several versions of libraries are mixed here ({'; '.join(several)}): methods that one version "
            "computed are compared with methods of another."
        )
    return tuple(sentences)


def settings(results: Results) -> Section:
    """Return every setting of models, methods and metrics."""
    manifest = results.manifest
    methods: dict[tuple[str, str, str], list[str]] = {}
    for model, entries in manifest.settings.items():
        for method, setting in entries.items():
            title = method if results.is_control(method) else setting_title(setting["method"])
            methods.setdefault((method, title, _pairs(setting["method"])), []).append(model)
    used = [(method, title, ", ".join(models), pairs) for (method, title, pairs), models in methods.items()]
    models = [
        (label, model["spec"], model["architecture"], model["weights"], _pairs(model["preprocessing"]))
        for label, model in manifest.models.items()
    ]
    metrics = [
        (
            f"{metric['title']} ({label})",
            "neither" if metric["direction"] == "none" else metric["direction"],
            metric["unit"] or "pure number",
            *(metric[name] for name in ("summary", "limit", "space")),
            *(_pairs(metric["settings"]), metric["source"]),
        )
        for label, metric in manifest.metrics.items()
    ]
    of_models = ("model", "source", "architecture", "weights (digest)", "preprocessing")
    of_metrics = ("metric", "better", "unit", "summary", "images", "looks at", "settings", "source")
    sections = (
        Section("Models", table=Table(of_models, models, "Models")),
        Section("Methods", table=Table(("method", "title", "models", "settings"), used, "Settings of the methods")),
        Section("Metrics", table=Table(of_metrics, metrics, "Settings of the metrics")),
    )
    return Section("Settings", sections=sections)


def versions(results: Results) -> dict[str, str]:
    """Return the versions of libraries that computed the run."""
    used = {name: ", ".join(counts) for name, counts in results.versions.items()}
    texts = {f"{name} (run)": text for name, text in {**results.manifest.versions, **used}.items()}
    texts["fringe (report)"] = fringe.__version__
    return texts


def _images(manifest: Manifest) -> str:
    count, plan = len(manifest.images), manifest.plan
    if manifest.scenes:
        sizes = Counter(image["scene"] for image in manifest.images)
        parts = ", ".join(f"{scene['title']} ({label}) {sizes[label]}" for label, scene in manifest.scenes.items())
        source = f", made of images of {', '.join(plan['data'])}" if plan["data"] else ""
        return (
            f"{count} examples with a known answer{source}, drawn by seed {plan['seed']} and named by their content: "
            f"{parts}. Each network is explained on the examples of its scene."
        )
    lost = f"; {counted(len(manifest.missing), 'more image')} cannot be read" if manifest.missing else ""
    turned = (
        "rotated by their EXIF orientation"
        if plan["exif"] == "transpose"
        else "read as they are stored; their EXIF orientation is ignored"
    )
    how = f"drawn by seed {plan['seed']}" if plan.get("sample", True) else "the first ones in their order"
    return f"{count} images of {', '.join(plan['data'])}, {how} and named by their content{lost}. Photos are {turned}."


def _pairs(record: Mapping[str, Any]) -> str:
    """Return ``steps=50, baseline=zero``, after the name of a method or metric."""
    name = record.get("method", record.get("metric", record.get("control")))
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in record.items()}
    pairs = [f"{key}={text}" for key, text in texts.items() if key not in ("method", "metric", "control")]
    return ", ".join(pairs) if name is None else f"{name}: {', '.join(pairs) or 'no settings'}"
