"""What the command line writes, and the names under which results are stored, frozen: a restructuring must not move
them.

``python tests/contract/test_golden_outputs.py records listings`` writes these sections anew, without names all. Do that
only for a change that is meant to move numbers, and say in its message which ones and why. Where a file or a key of an
output is renamed on purpose, only the functions that read outputs, at the top, are adapted: what is frozen is keyed by
method, metric and image alone.
"""

import copy
import csv
import json
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from golden_runs import COMMON, CONTEST, METRICS, as_json, benchmarked, run, temporary
from safetensors.torch import load_file

import fringe
from fringe._files.records import digest
from fringe.attribution import PaperFRInGe
from fringe.bench.experiments import Store, manifests, pending_tasks

NUMBERS = Path(__file__).parent / "golden_outputs.json"
RELATIVE, ABSOLUTE = 3e-5, 2e-5
"""Runs are in single precision: sums in another order, as by a processor without vector instructions, move scores by
1.4e-5 of their size, the score at the end of a path by 1.3e-5, and a residual of .03 by 6.5e-6."""

EXPLAINED = {"fringe": ("tau=0.02",), "ig": ("steps=6",)}


# --- reading outputs: all that depends on the names of files and keys ---


def benchmark_rows(out):
    """Every score of a benchmark."""
    for row in read_csv(out / "report" / "scores.csv"):
        yield {
            "method": row["method"],
            "metric": row["metric"],
            "image": row["image_id"],
            "score": number(row["score"]),
            "confidence": number(row["confidence"]),
            "status": row["status"],
            "verdict": row["verdict"],
            "target": int(row["target"]),
            "label": int(row["label"]),
            "flags": row["flags"],
            "control": row["control"],
            "digest": row["image"],
            "passes": {name: number(row[name]) for name in ("forward", "jvp", "vjp")},
        }


TABLE_NUMBERS = ("value", "mean", "low", "high", "median", "half_iqr")
TABLE_COUNTS = ("summary", "direction", "unit", "reference", "n", "required", "missing", "failed", "undefined")
TABLE_MARKS = ("best", "near_tie", "flags")
DIFFERENCE = {
    "value": "difference_value",
    "low": "difference_low",
    "high": "difference_high",
    "n": "difference_n",
    "p": "difference_p",
    "p_holm": "p_holm",
}


def report_cells(out):
    """Every cell of the report's score table, with its paired difference to the reference method."""
    for row in read_csv(out / "report" / "summary.csv"):
        yield {
            "method": row["method"],
            "metric": row["metric"],
            "estimate": {name: number(row[name]) for name in TABLE_NUMBERS},
            "difference": {name: number(row[column]) for name, column in DIFFERENCE.items()},
            "exact": {name: row[name] for name in (*TABLE_COUNTS, *TABLE_MARKS)},
        }


def stored_keys(out):
    """The setting's and the metric's key of every stored score."""
    for block in Store(out, create=False).blocks():
        for label, key in zip(block.about["labels"], block.about["metrics"], strict=True):
            yield {"method": block.about["method"], "metric": label, "setting": block.setting, "metric_key": key}


def stored_tasks(out):
    """The tasks of the plan, all of which are stored."""
    store = Store(out, create=False)
    (plan,) = manifests(store).values()
    assert pending_tasks(plan, store.blocks(), 16) == []
    return pending_tasks(plan, (), 16)


def stored_names(out):
    """The names of the stored tasks and of their maps, which a later run looks for."""
    return {"units": sorted(task.key for task in stored_tasks(out)), "maps": sorted(stored_maps(out))}


def stored_maps(out):
    store = Store(out, create=False)
    return {
        f"{task.setting}-{digest(sorted(task.images))}": store.load_maps(task.setting, task.images)
        for task in stored_tasks(out)
    }


def setting_records(out):
    """All that shapes a method's map, as plain data, by method."""
    return Store(out, create=False).records("plan")["benchmark"]["settings"]["digits"]


def compare_rows(out):
    """Every score of a comparison."""
    return [
        {**{name: row[name] for name in ("method", "metric", "image", "flags")}, "score": number(row["score"])}
        for row in read_csv(out / "scores.csv")
    ]


def compare_cells(out):
    names = ("mean", "median", "low", "high", "half_iqr")
    for cell in read_json(out / "summary.json")["table"]:
        yield {
            "method": cell["method"],
            "metric": cell["metric"],
            "estimate": {name: cell[name] for name in names},
            "exact": {name: cell[name] for name in ("n", "images", "flagged", "summary", "control")},
        }


def compare_methods(out):
    """Record and passes by method."""
    methods = read_json(out / "summary.json")["methods"]
    return {m["label"]: {"record": m["settings"], "passes": m["passes"], "maps": m["maps"]} for m in methods}


def compare_targets(out):
    return {image["id"]: image["target"]["class"] for image in read_json(out / "summary.json")["images"]}


def explanations(out):
    """What an explanation says of each image, and its saved map."""
    for folder in sorted(f for f in out.iterdir() if f.is_dir()):
        said = read_json(folder / "explanation.json")
        names = ("score", "endpoint_score", "completeness_gap", "completeness_residual")
        yield {
            "image": said["id"],
            "numbers": {**{name: said[name] for name in names}, "diagnostics": said["diagnostics"]},
            "probability": said["prediction"]["probability"],
            "exact": {
                "target": said["target"]["class"],
                "prediction": said["prediction"]["class"],
                "label": said["label"],
                "verdict": said["verdict"],
                "steps": said["steps"],
                "passes": said["cost"]["passes"],
                "settings": said["settings"],
            },
            "values": load_file(folder / "attribution.safetensors")["values"],
        }


def listed(command):
    """Presets and names of settings by method or metric, as the command line lists them."""
    document = json.loads(run(command, "--json").stdout)[command]
    return {e["name"]: {"presets": e["presets"], "settings": [s["name"] for s in e["settings"]]} for e in document}


def listed_networks():
    """The paper's settings by network and variant."""
    found = json.loads(run("presets", "--json").stdout)["presets"]
    return {f"{e['model']} {e['variant']}": e["settings"] for e in found}


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def number(text):
    return float(text) if text else None


# --- runs ---


@cache
def compared():
    out = Path(temporary().name) / "compare"
    run("compare", "embedded:digits:3:6", "--out", out, *COMMON, *CONTEST)
    return out


@cache
def explained(method):
    out = Path(temporary().name) / f"explain-{method}"
    settings = [part for setting in EXPLAINED[method] for part in ("--set", setting)]
    run("explain", "embedded:digits:8:10", "--out", out, *COMMON, "--method", method, *settings, "--no-figures")
    return out


# --- what is frozen: floats within the tolerance under "near", all else equal to the last byte under "exact" ---


def in_order(found):
    """Sorted by name: the order of methods, metrics and images is not frozen, that of a record's fields is."""
    return dict(sorted(found.items()))


def by_names(entries, *names):
    """The entries as nested mappings by the values of ``names``, which say where an entry is and are no part of it."""
    tree = {}
    for entry in sorted(entries, key=lambda entry: [entry[name] for name in names]):
        branch = tree
        for name in names[:-1]:
            branch = branch.setdefault(entry[name], {})
        assert entry[names[-1]] not in branch, [entry[name] for name in names]
        branch[entry[names[-1]]] = {key: value for key, value in entry.items() if key not in names}
    return tree


def leaves(tree, depth, pick):
    return pick(tree) if depth == 0 else {name: leaves(branch, depth - 1, pick) for name, branch in tree.items()}


def without(entry, *names):
    return {name: value for name, value in entry.items() if name not in names}


def benchmark_scores():
    tree = by_names(benchmark_rows(benchmarked()), "method", "metric", "image")
    maps = {}
    for method, metrics in tree.items():
        for images in metrics.values():
            for image, row in images.items():
                said = without(row, "score", "flags", "confidence")
                assert maps.setdefault(method, {}).setdefault(image, said) == said  # of a map, whatever the metric
    return {
        "near": {
            "score": leaves(tree, 3, lambda row: row["score"]),
            "confidence": {image: row["confidence"] for image, row in tree["fringe"]["deletion"].items()},
        },
        "exact": {"flags": leaves(tree, 3, lambda row: row["flags"]), "maps": maps},
    }


def benchmark_table():
    tree = by_names(report_cells(benchmarked()), "method", "metric")
    return {
        "near": leaves(tree, 2, lambda cell: without(cell, "exact")),
        "exact": leaves(tree, 2, lambda cell: cell["exact"]),
    }


def benchmark_maps():
    """Sum and sum of squares of the stored maps by the name of their file and the digest of their image."""
    stored = stored_maps(benchmarked()).items()
    maps = {name: {image: sums(one.values) for image, one in found.items()} for name, found in stored}
    return {"near": maps, "exact": stored_names(benchmarked())}


def benchmark_keys():
    settings, metrics = {}, {}
    for row in stored_keys(benchmarked()):
        assert settings.setdefault(row["method"], row["setting"]) == row["setting"]
        assert metrics.setdefault(row["metric"], row["metric_key"]) == row["metric_key"]
    keys = {"settings": in_order(settings), "metrics": in_order(metrics)}
    return {"near": {}, "exact": {**keys, "records": in_order(setting_records(benchmarked()))}}


def compare_scores():
    tree = by_names(compare_rows(compared()), "method", "metric", "image")
    return {
        "near": leaves(tree, 3, lambda row: row["score"]),
        "exact": {
            "flags": leaves(tree, 3, lambda row: row["flags"]),
            "methods": in_order(compare_methods(compared())),
            "targets": in_order(compare_targets(compared())),
        },
    }


def compare_table():
    tree = by_names(compare_cells(compared()), "method", "metric")
    return {
        "near": leaves(tree, 2, lambda cell: cell["estimate"]),
        "exact": leaves(tree, 2, lambda cell: cell["exact"]),
    }


def explain():
    tree = {method: by_names(explanations(explained(method)), "image") for method in EXPLAINED}
    return {
        "near": leaves(tree, 2, lambda e: {**e["numbers"], "probability": e["probability"], "map": sums(e["values"])}),
        "exact": leaves(tree, 2, lambda e: {**e["exact"], "shape": list(e["values"].shape)}),
    }


def sums(values):
    values = values.double()
    return {"sum": float(values.sum()), "squares": float(values.square().sum())}


def default_keys():
    """The digests that name each method's and each metric's default, alone and as the setting of a run."""
    setting = copy.deepcopy(setting_records(benchmarked())["ig"])
    methods = in_order({name: kind().record() for name, kind in fringe.METHODS.items()})
    return {
        "near": {},
        "exact": {
            "methods": {name: digest(record) for name, record in methods.items()},
            "settings": {name: digest({**setting, "method": record}) for name, record in methods.items()},
            "metrics": {name: digest(fringe.METRICS[name]().record()) for name in METRICS},
        },
    }


# A whole number given for a real one stays one: 3 and 3.0 are written differently, and have different keys.
AS_GIVEN = {
    "fringe whole numbers": ("fringe", {"tau": 1, "delta_euc": 3, "gamma_prior": 0}),
    "fringe reference list": ("fringe", {"reference": [0.25, 0.5, 0.25]}),
    "fringe reference tensor": ("fringe", {"reference": torch.full((2, 4), 0.25)}),
    "fringe nothing": ("fringe", {"delta_euc": None, "steps": 3, "halvings": 0}),
    "smoothgrad whole numbers": ("smoothgrad", {"spread": 1, "sigma": 2}),
    "ig blur": ("ig", {"baseline": "blur:0.1"}),
    "infidelity whole numbers": ("infidelity", {"sigma": 1}),
    "insertion whole numbers": ("insertion", {"sigma": 2, "size": 5}),
}


def records():
    """Records by name of the method or metric, its preset, variant, or the settings given."""
    found = {}
    for name, kind in {**fringe.METHODS, **fringe.METRICS}.items():
        found[name] = kind().record()
        found |= {f"{name}:{preset}": kind.preset(preset).record() for preset in kind.presets}
    for network in listed_networks():
        model, variant = network.split()
        found[f"paper:{network}"] = PaperFRInGe.preset(model, variant).record()
    for label, (name, settings) in AS_GIVEN.items():
        found[label] = {**fringe.METHODS, **fringe.METRICS}[name](**settings).record()
    return {"near": {}, "exact": in_order(found)}


def listings():
    found = {"networks": listed_networks(), "methods": listed("methods"), "metrics": listed("metrics")}
    return {"near": {}, "exact": {name: in_order(entries) for name, entries in found.items()}}


SECTIONS = {
    part.__name__: part
    for part in (
        *(benchmark_scores, benchmark_table, benchmark_maps, benchmark_keys, compare_scores, compare_table),
        *(explain, default_keys, records, listings),
    )
}


# --- comparing ---


def differences(mine, stored, path=""):
    """A line for each number that moved, and for each name that one side lacks."""
    if isinstance(mine, dict) and isinstance(stored, dict):
        for name in sorted({*mine, *stored}):
            if name not in mine or name not in stored:
                yield f"{path}/{name}: {'not produced' if name not in mine else 'not frozen'}"
            else:
                yield from differences(mine[name], stored[name], f"{path}/{name}")
    elif mine is None or stored is None:
        if mine is not stored:
            yield f"{path}: {mine}, was {stored}"
    elif mine != pytest.approx(stored, rel=RELATIVE, abs=ABSOLUTE):
        yield f"{path}: {mine}, was {stored}"


def changed(mine, stored, path=""):
    """A line for each value whose JSON text is another; the order of a record's names counts, as it is written."""
    if json.dumps(mine) == json.dumps(stored):
        return
    if isinstance(mine, dict) and isinstance(stored, dict) and list(mine) == list(stored):
        for name in mine:
            yield from changed(mine[name], stored[name], f"{path}/{name}")
    elif isinstance(mine, dict) and isinstance(stored, dict):
        yield f"{path}: the names {list(mine)}, were {list(stored)}"
    else:
        yield f"{path}: {json.dumps(mine)}, was {json.dumps(stored)}"


@cache
def golden():
    return read_json(NUMBERS)


#: Sections of all methods and metrics, each with the names of its parts that have an entry for each of them.
OF_ALL = {"records": None, "listings": ("methods", "metrics"), "default_keys": ("methods", "settings")}


def parts_of_all(section, exact):
    """The parts of a section that have an entry for each method or metric, by name, with a preset or without."""
    return [exact] if OF_ALL[section] is None else [exact[part] for part in OF_ALL[section]]


def without_new(section, mine, stored):
    """My records without those of methods and metrics that have none yet; and the names of these."""
    mine, new = copy.deepcopy(mine), set()
    if section in OF_ALL:
        for part, known in zip(parts_of_all(section, mine), parts_of_all(section, stored), strict=True):
            for name in [name for name in part if name.partition(":")[0] not in known]:
                new.add(name.partition(":")[0])
                del part[name]
    return mine, new


@pytest.mark.parametrize("section", SECTIONS)
def test_an_output_is_what_it_was(section):
    mine, stored = SECTIONS[section](), golden()[section]
    exact, _ = without_new(section, mine["exact"], stored["exact"])
    found = [*changed(exact, stored["exact"]), *differences(mine["near"], stored["near"])]
    meant = f"if this is meant, run: python tests/contract/test_golden_outputs.py {section}"
    assert not found, "\n".join([*found, meant])


@pytest.mark.thorough
def test_every_method_and_metric_has_a_record():
    """Each test above passes for one that is new, and this one names it."""
    new = {name for part in OF_ALL for name in without_new(part, SECTIONS[part]()["exact"], golden()[part]["exact"])[1]}
    command = f"python tests/contract/test_golden_outputs.py {' '.join(OF_ALL)}"
    assert not new, f"no record yet of {', '.join(sorted(new))}; this writes it: {command}"


def test_a_new_method_lacks_a_record_and_an_old_one_keeps_its_own():
    known = {"ig": {"steps": 5}, "ig:paper": {"steps": 200}}
    added = {**known, "midway": {"steps": 2}, "midway:quick": {"steps": 1}}
    assert without_new("records", added, known) == (known, {"midway"})
    assert without_new("records", {**known, "ig:quick": {}}, known) == ({**known, "ig:quick": {}}, set())
    assert without_new("records", {"ig": {}}, known) == ({"ig": {}}, set())


def test_a_small_change_is_seen():
    score = {"ig": {"deletion": 0.5, "endpoint_kl": None}}
    moved = {"ig": {"deletion": 0.5 * (1 + 5e-5), "endpoint_kl": None}}
    assert [*differences(score, score)] == []
    assert len([*differences(moved, score)]) == 1
    assert len([*differences({"ig": {"deletion": 0.5, "endpoint_kl": 0.0}}, score)]) == 1
    assert len([*differences({"ig": {"deletion": 0.5}}, score)]) == 1
    assert [*changed({"tau": 1}, {"tau": 1.0})] == ["/tau: 1, was 1.0"]
    assert len([*changed({"a": 1, "b": 2}, {"b": 2, "a": 1})]) == 1


def shortened(value):
    """Nine digits are enough for single precision."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value


if __name__ == "__main__":
    torch.set_num_threads(1)
    said = {name: SECTIONS[name]() for name in sys.argv[1:] or SECTIONS}
    new = {name: {"near": shortened(one["near"]), "exact": one["exact"]} for name, one in said.items()}
    NUMBERS.write_text(as_json({**golden(), **new}) + "\n")
