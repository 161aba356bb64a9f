"""Runs made of numbers that the tests know: a manifest and rows, without a model or an image."""

from fringe._files.records import digest
from fringe.bench.experiments import Manifest, Store
from score_records import ScoreRecord, commit, results_from

METRICS = {
    "mas_insertion": ("MAS insertion", "higher", "", "mean"),
    "mas_deletion": ("MAS deletion", "lower", "", "mean"),
    "insertion": ("Insertion AUC", "higher", "", "mean"),
    "deletion": ("Deletion AUC", "lower", "", "mean"),
    "infidelity": ("Infidelity", "lower", "score^2", "mean"),
    "max_sensitivity": ("Max sensitivity", "lower", "1 / input unit", "median"),
    "steps": ("Steps", "none", "", "mean"),
}
CONTROLS = ("zero", "random", "uniform", "edge")


def manifest(methods, metrics, images, *, models=("net",), limits=None, seed=0, name="benchmark", data="photos"):
    """A manifest of ``images`` pictures; ``methods`` may hold the names of controls."""
    found = [
        {"digest": f"{i:032x}", "id": f"image-{i}", "source": f"nowhere/{i}.png", "label": i} for i in range(images)
    ]
    plan = {
        "name": name,
        "data": [data],
        "models": dict.fromkeys(models, "embedded:none"),
        "preprocessing": dict.fromkeys(models),
        "methods": {model: {m: method_record(m) for m in methods} for model in models},
        "metrics": {},
        "limits": dict(limits or {}),
        "n": images,
        "seed": seed,
        "target": "predicted",
        "score": "logit",
        "exif": "ignore",
        "references": None,
    }
    settings = {
        model: {m: {"model": {"architecture": model}, "method": method_record(m)} for m in methods} for model in models
    }
    about = {
        "spec": "embedded:none",
        "architecture": "net",
        "weights": "0" * 32,
        "structure": "1" * 32,
        "preprocessing": {"resize": [32, 32]},
    }
    return Manifest(
        plan=plan,
        images=tuple(found),
        missing=(),
        settings=settings,
        metrics={label: metric_record(label, (limits or {}).get(label, images)) for label in metrics},
        models=dict.fromkeys(models, about),
        versions={"fringe": "0.0.0", "torch": "0.0"},
    )


def method_record(method):
    return {"control": method} if method in CONTROLS else {"method": method, "steps": 7}


def metric_record(label, limit):
    title, direction, unit, summary = METRICS[label.partition(":")[0]]
    settings = {"metric": label.partition(":")[0], "reference": "box", "normalise": ":raw" not in label}
    return {
        "title": title,
        "direction": direction,
        "unit": unit,
        "space": "somewhere",
        "source": "Somebody 2030",
        "summary": summary,
        "settings": settings,
        "key": digest([label, settings]),
        "limit": limit,
    }


def rows(about, scores, **more):
    """Rows of ``scores[model, method, metric]``: a number an image; None for no score beside a sound map, ``"missing"``
    for nothing computed, another text for a row that failed with it as its error. ``more[name]`` maps a method (and an
    image) to a field."""
    found = {}
    for (model, method, metric), column in scores.items():
        for place, value in enumerate(column):
            if value == "missing":
                continue
            image = about.images[place]
            row = ScoreRecord(
                setting=about.setting_key(model, method),
                metric_key=about.metrics[metric]["key"],
                image=image["digest"],
                model=model,
                method=method,
                metric=metric,
                image_id=image["id"],
                label=image["label"],
                target=3,
                confidence=0.75,
                score=None if isinstance(value, str) else value,
                status="failed" if isinstance(value, str) else "ok",
                error=value if isinstance(value, str) else None,
                **{name: give(method, metric, place) for name, give in more.items()},
            )
            found[row.key] = row
    return found


def results(about, scores, **more):
    return results_from(about, rows(about, scores, **more))


def scored(columns, metrics=("insertion",), **more):
    """Results of these scores of each method, which are the same under every metric."""
    about = manifest(tuple(columns), metrics, len(next(iter(columns.values()))))
    return results(about, {("net", name, k): list(column) for name, column in columns.items() for k in metrics}, **more)


def store_of(folder, about, scores, **more):
    """A run on disk with these scores."""
    store = Store(folder)
    store.write_record("plan", about.name, about.record())
    known = rows(about, scores, **more)
    for model in about.settings:
        for method in about.settings[model]:
            mine = [row for row in known.values() if (row.model, row.method) == (model, method)]
            if mine:
                commit(store, mine, about.settings[model][method])
    return store
