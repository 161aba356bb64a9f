"""Runs with scenes made of numbers that the tests know: reports of a method, and maps that are right by them."""

import numpy as np

import fringe
from fringe._text import plain
from fringe.experiments import CONTROLS, Manifest, ScoreRecord, Store, digest
from fringe.experiments._results import results_from
from fringe.metrics import METRICS

#: Smallest and largest value of each report: residual as its logarithm to the base 10.
REPORTS = {
    "completeness_residual": (-6.0, 2.0),
    "endpoint_kl": (0.0, 4.0),
    "tracking_error_mean": (0.0, 3.0),
    "tracking_error_max": (0.0, 3.0),
}
CHANCE = 0.25
#: Logit of the probability that a map is right: minus this times the logarithm of the residual, plus an offset.
SLOPE, OFFSET = 1.0, -2.0


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-np.asarray(z, dtype=float)))


def world(n=300, scenes=4, *, networks=1, seed=0, of_scene=None, labels=None, method=None, stability=False):
    """Maps of scenes: their reports, verdicts, and whether they are right; ``of_scene`` is added to the logit,
    ``labels`` replaces who is right, ``stability`` decides it in place of the residual."""
    rng = np.random.default_rng(seed)
    total = n * scenes * networks
    reports = {name: rng.uniform(*ends, total) for name, ends in REPORTS.items()}
    sensitivity = rng.uniform(-2.0, 2.0, total)  # its logarithm
    scene = np.arange(total) // (n * networks)
    extra = np.zeros(total) if of_scene is None else np.asarray(of_scene)[scene]
    logit = -2.5 * sensitivity if stability else -SLOPE * reports["completeness_residual"] + OFFSET
    right = rng.random(total) < sigmoid(logit + extra)
    right = right if labels is None else labels(right, rng)
    verdict = np.where(reports["completeness_residual"] > np.log10(0.05), "coarse", "ok")
    verdict = np.where(
        reports["endpoint_kl"] > 3.5, "stalled", np.where(reports["endpoint_kl"] > 3.0, "short", verdict)
    )
    return {
        "reports": {**reports, "completeness_residual": 10 ** reports["completeness_residual"]},
        "sensitivity": 10**sensitivity,
        "right": right,
        "verdict": verdict.astype("U16"),
        "shape": (scenes, networks, n),
        "method": plain((method or fringe.FRInGe()).record()),
        "stability": stability,
    }


def manifest(known, *, names=None, failed=(), weights="0"):
    """The manifest of a world; ``names`` are those of its scenes, networks in ``failed`` have a gate that fails."""
    scenes, networks, n = known["shape"]
    names = names or [f"scene{k}" for k in range(scenes)]
    metrics = ["mass_inside", "rank_accuracy", *(["max_sensitivity"] if known["stability"] else [])]
    methods = {"fringe": known["method"], **{name: {"control": name} for name in CONTROLS}}
    models = {f"{name}-{k}" if networks > 1 else name: name for name in names for k in range(networks)}
    images = [
        {
            **{"digest": digest([name, i]), "id": f"{name}-{i}", "source": f"scene {name}: {i}", "label": None},
            **{"scene": name, "cluster": f"cluster{i}", "target": 1},
        }
        for name in names
        for i in range(n)
    ]
    gate = [{"holds": False, "text": "accuracy: 0.2 (at least 0.9): fails"}]
    described = {
        name: {
            **{"title": name.title(), "source": "nobody", "answer": "it is made up", "settings": {"scene": name}},
            "networks": {
                model: {"given": None, "number": 0, "gates": gate if model in failed else []}
                for model, of in models.items()
                if of == name
            },
        }
        for name in names
    }
    about = {"spec": "none", "architecture": "net", "weights": "0" * 32, "structure": "1" * 32, "preprocessing": {}}
    return Manifest(
        plan={
            **{"name": "benchmark", "data": [], "models": dict.fromkeys(models, "none"), "preprocessing": {}},
            **{"methods": dict.fromkeys(models, methods), "metrics": {}, "limits": {}, "n": n, "seed": 0},
            **{"target": "predicted", "score": "logit", "exif": "ignore", "references": None},
        },
        images=tuple(images),
        missing=(),
        settings={
            model: {
                method: {"model": {"architecture": model, "weights": weights}, "method": record, "score": "logit"}
                for method, record in methods.items()
            }
            for model in models
        },
        metrics={name: _metric(name, n) for name in metrics},
        models=dict.fromkeys(models, about),
        versions={"fringe": "0.0.0", "torch": "0.0"},
        scenes=described,
    )


def _metric(name, limit):
    metric = METRICS[name]()
    words = {key: getattr(metric, key) for key in ("title", "direction", "unit", "space", "source")}
    settings = metric.record()
    return {**words, "summary": metric.aggregate, "settings": settings, "key": digest(settings), "limit": limit}


def records(known, about):
    """All scores of a world: right maps have a rank accuracy of 1, others that of chance, and the mass of chance."""
    result, index = {}, 0
    for model in about.settings:
        for image in about.images_of(model):
            row = {name: column[index] for name, column in known["reports"].items()}
            scores = {"mass_inside": CHANCE, "rank_accuracy": 1.0 if known["right"][index] else CHANCE}
            scores |= {"max_sensitivity": known["sensitivity"][index]} if known["stability"] else {}
            for method in about.settings[model]:
                is_method = method == "fringe"
                for metric, score in scores.items():
                    one = ScoreRecord(
                        **{"setting": about.setting_key(model, method), "metric_key": about.metrics[metric]["key"]},
                        **{"image": image["digest"], "model": model, "method": method, "metric": metric},
                        **{"image_id": image["id"], "label": None, "target": 1, "confidence": 0.9, "status": "ok"},
                        score=float(score) if is_method else CHANCE,
                        verdict=str(known["verdict"][index]) if is_method else None,
                        diagnostics=[(k, float(v)) for k, v in row.items()] if is_method else (),
                        extras=(("chance", CHANCE),),
                    )
                    result[one.key] = one
            index += 1
    return result


def results(known, **words):
    about = manifest(known, **words)
    return results_from(about, records(known, about))


def store_of(folder, known, **words):
    """The same as a run on disk."""
    about = manifest(known, **words)
    store, rows = Store(folder), records(known, about)
    store.write_record("plan", about.name, about.record())
    for model in about.settings:
        for method in about.settings[model]:
            part = [row for row in rows.values() if (row.model, row.method) == (model, method)]
            empty = {"metrics": {}, "versions": {}, "map_versions": []}
            store.commit(part, {"setting": about.settings[model][method], **empty})
    return store
