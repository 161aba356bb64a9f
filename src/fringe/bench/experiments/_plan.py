"""Plans: an experiment with every model, method and metric configured."""

import contextlib
import copy
import hashlib
import importlib.util
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from fringe._files.urls import url_of
from fringe._network.outputs import OutputKind
from fringe._strings.names import split_path, unique
from fringe.attribution import (
    METHODS,
    Attributor,
    CentrePrior,
    get_method,
    innermost_reference,
    preset_names,
    read_preset,
    read_target,
    require_package,
)
from fringe.bench.experiments._spec import ExperimentSpec, options_of
from fringe.bench.scenes import SCENES, Scene, get_scene
from fringe.classifier import Score
from fringe.data import SOURCE, ImageError, ImageRef, find_inputs
from fringe.detection import as_detector, is_detector, read_boxes
from fringe.errors import InputError, did_you_mean, install_hint, warn_caller
from fringe.evaluation import BOX_CONTROLS, CONTROLS, TEXT_CONTROLS, Candidate, planned_work, with_controls
from fringe.inputs import default_model
from fringe.metrics import DEFAULT_METRICS, METRICS, Metric, get_metric
from fringe.models import LoadedModel, Preprocessing, load_model, state_digest, stated_preprocessing
from fringe.settings import Configured, canonical_name, with_settings

#: The setting that the paper tuned for a model's architecture, as the preset of a method.
AUTO = "auto"


@dataclass(frozen=True)
class PlanModel:
    """One model of a plan, and the methods that explain it.

    Attributes:
        label: Its name in the plan.
        spec: Text for :func:`fringe.models.load_model`; a name where it is ``loaded``.
        methods: By label.
        preprocessing: Replaces the preprocessing of the source.
        trust_code: Whether code of the model's author may run.
        output: What the model returns, as for :class:`fringe.Classifier`.
        loaded: The model, where it is in memory already.
        scene: Label of the scene whose examples are explained; empty for none.
        given: Label of the model that the network of the scene is made of; empty for none.
        maker: The scene, which makes the network, of the model that the fields above name if it requires one.
        number: Number of the network among those that the scene makes.
        data: The images that the scene is given.
    """

    label: str
    spec: str
    methods: Mapping[str, Attributor]
    preprocessing: str | None = None
    trust_code: bool = False
    output: OutputKind = "auto"
    loaded: LoadedModel | None = None
    scene: str = ""
    given: str = ""
    maker: Scene | None = None
    number: int = 0
    data: tuple[str, ...] = ()

    def load(self, device: torch.device | str = "cpu", *, images: Sequence[ImageRef] | None = None) -> LoadedModel:
        """Load the model in evaluation mode, without parameter gradients. ``images`` are those of ``data``, where they
        are listed already."""
        if self.maker is None:
            loaded = self._source(device)
            return replace(loaded, module=as_detector(loaded.module))
        source = self.load_given()
        if not self.maker.requires_images:
            images = []
        elif images is None:
            images = list(find_inputs(self.data))
        loaded = self.maker.network(self.number, source, images)
        return replace(loaded, module=loaded.module.eval().requires_grad_(False).to(device))

    def load_given(self) -> LoadedModel | None:
        """Load the model that the network of a scene is made of, on the CPU; None where it is made of none."""
        if self.maker is None or not self.maker.requires_model:
            return None
        source = self._source("cpu")
        if is_detector(source.module):
            message = f"{self.maker.name} is made of a classifier, and the model {self.spec!r} is a detector"
            hint = "the scenes shapes and context have detectors of their own; images need no scene"
            raise InputError(message, argument="scene", hint=hint)
        return source

    def _source(self, device: torch.device | str) -> LoadedModel:
        if self.loaded is None:
            recipe = None if self.preprocessing is None else Preprocessing.parse(self.preprocessing)
            how: dict[str, Any] = {"trust_code": self.trust_code, "preprocessing": recipe, "output": self.output}
            return load_model(self.spec, device=device, **how)
        module = self.loaded.module
        devices = {one.device.type for one in (*module.parameters(), *module.buffers())}
        if self.maker is None and devices <= {torch.device(device).type}:
            return self.loaded
        return replace(self.loaded, module=_copied(module).to(device))


def _copied(module: nn.Module) -> nn.Module:
    with torch.no_grad():  # copied weights of a scripted module would be part of a graph
        module = copy.deepcopy(module).eval()
    nn.Module.requires_grad_(module, False)  # the method of a scripted module refuses
    return module


def scene_models(
    scenes: Mapping[str, Scene], given: Iterable[PlanModel], data: tuple[str, ...], methods: Mapping[str, Attributor]
) -> tuple[PlanModel, ...]:
    """The networks of scenes as models of a plan: ``gridpg:resnet20`` for one that is made of a given model,
    ``watermark-3`` for number 3 of a scene that trains its own. ``methods`` explain networks that are made of no given
    model."""
    made, models = list[PlanModel](), list(given)
    for label, scene in scenes.items():
        for model in models if scene.requires_model else [PlanModel("", scene.name, methods)]:
            for number in range(scene.networks):
                name = f"{label}:{model.label}" if model.label else label
                name = f"{name}-{number}" if scene.networks > 1 else name
                of_scene: dict[str, Any] = {"scene": label, "given": model.label, "maker": scene}
                made.append(replace(model, label=name, number=number, data=data, **of_scene))
    return tuple(made)


def refuse_lookalikes(argument: str, named: Mapping[str, Attributor] | Mapping[str, Metric]) -> None:
    """Raise InputError if two classes have one name and the same settings, by which scores are stored."""
    for (first, one), (second, other) in combinations(named.items(), 2):
        kinds = [(type(each), type(getattr(each, "innermost", each))) for each in (one, other)]
        has_code = hasattr(kinds[0][0], "code") and hasattr(kinds[1][0], "code")  # their keys hold all of their text
        if kinds[0] != kinds[1] and one.record() == other.record() and not has_code:
            message = f"{first} and {second} have one name and the same settings, and would share their scores"
            raise InputError(message, argument=argument, hint="give the class of one of them a `name` of its own")


def written_code(configured: Attributor | Metric | None) -> str | None:
    """Digest of the functions' source text in the classes of a method or metric and of the method within, and of their
    ``code`` (of a function as a method; the rule for ties of a metric); None without either, or if no text is read."""
    kinds = [kind for each in (configured, getattr(configured, "innermost", None)) for kind in type(each).__mro__]
    texts = [str(kind.code) for kind in kinds if "code" in vars(kind)]
    for kind in kinds:
        if kind.__module__.startswith("fringe."):
            continue
        for member in vars(kind).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if inspect.isfunction(function) and not (function.__module__ or "").startswith(("fringe.", "typing")):
                with contextlib.suppress(Exception):  # what a dataclass writes has no text; a file may have changed
                    texts.append(inspect.getsource(function))
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:32] if texts else None


@dataclass(frozen=True)
class Plan:
    """Models, methods, metrics and images. ``name`` tells the plans of one folder apart.

    ``data`` names images as a command line does; ``n`` of them are drawn by ``seed``, which keys all noise, too.
    ``limits`` holds metrics that only the first so many images are scored by, and scenes of fewer examples. ``exclude``
    are digests of images that are not drawn; ``holdout`` draws from the end of the order, for a part that must not meet
    the others. ``shard`` images make a task. ``target``: ``"predicted"`` (top-1 on the clean image, the paper's
    protocol), ``"label"``, or the number of a class. ``scenes`` by label make the networks and examples of the models,
    ``n`` examples each. ``controls`` may name those that are computed. Unless they are to ``sample``, the images are
    the first ``n`` in their order. The maps of the first ``shown`` images are stored in any case. Of a detector,
    ``boxes`` says which are explained, in the form of a command line; once a plan is resolved, its images are these
    boxes. ``more`` are the options of the specification that have no field here.
    """

    name: str
    data: tuple[str, ...]
    models: tuple[PlanModel, ...]
    metrics: Mapping[str, Metric]
    n: int
    seed: int = 0
    target: str | int = "predicted"
    boxes: str | None = None
    score: Score = "logit"
    exif: Literal["transpose", "ignore"] = "ignore"
    references: str | None = None
    controls: bool | tuple[str, ...] = True
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    exclude: frozenset[str] = frozenset()
    holdout: bool = False
    shard: int = 16
    scenes: Mapping[str, Scene] = field(default_factory=dict[str, Scene])
    sample: bool = True
    shown: int = 0
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def option(self, name: str) -> Any:
        """The value of an option of the specification (:func:`options_of`)."""
        return getattr(self, name) if hasattr(self, name) else self.more.get(name, options_of()[name])

    def __post_init__(self) -> None:
        records = [scene.record() for scene in self.scenes.values()]
        twice = [label for label, record in zip(self.scenes, records, strict=True) if records.count(record) > 1]
        if twice:  # their examples would have the same names
            hint = "name it once, or change a setting of one"
            raise InputError(f"{', '.join(twice)} are one scene with the same settings", argument="scene", hint=hint)
        for model in self.models:
            reserved = (*(CONTROLS if self.controls else ()), *self._controls_of_kind(model))
            taken = sorted(set(model.methods) & set(reserved))
            if not model.methods or taken:
                problem = f"{', '.join(taken)} is a control; choose another label, or leave the controls out"
                raise InputError(f"methods: {problem if taken else 'none given'}")

    def model(self, label: str) -> PlanModel:
        """The model of a label."""
        return next(model for model in self.models if model.label == label)

    def candidates(self, model: PlanModel) -> list[Candidate]:
        """Who takes part on a model: its methods, then the controls."""
        methods, scene = [Candidate(*pair) for pair in model.methods.items()], self.scenes.get(model.scene)
        every = with_controls(methods, self.controls, self._controls_of_kind(model))
        if scene is None or (scene.has_space and not scene.has_words):
            return every
        return [one for one in every if not isinstance(one.method, CentrePrior)]  # there is no centre

    def _controls_of_kind(self, model: PlanModel) -> tuple[str, ...]:
        """The controls of explained boxes, or of the texts of a scene unless there are no controls."""
        scene = self.scenes.get(model.scene)
        if self.boxes is not None if scene is None else scene.has_boxes:
            return tuple(BOX_CONTROLS)
        return tuple(TEXT_CONTROLS) if self.controls and scene is not None and scene.has_words else ()

    def limit(self, name: str) -> int:
        """How many images a metric is computed on, or the models of a scene are explained on."""
        return min(self.limits.get(name, self.n), self.n)

    def record(self) -> dict[str, Any]:
        """The plan as plain data, for people and for telling two plans apart."""
        outputs = {model.label: model.output for model in self.models if model.output != "auto"}
        examples = {name: n for name, n in self.limits.items() if name in self.scenes}
        return {
            "name": self.name,
            "data": list(self.data),
            "models": {model.label: model.spec for model in self.models},
            "preprocessing": {model.label: model.preprocessing for model in self.models},
            "methods": {model.label: {e.label: e.record() for e in self.candidates(model)} for model in self.models},
            "metrics": {label: metric.record() for label, metric in self.metrics.items()},
            "limits": {name: n for name, n in self.limits.items() if name not in examples},
            **{name: self.option(name) for name in options_of("maps", "scores")},
            **({"model_output": outputs} if outputs else {}),
            **({"last": True} if self.holdout else {}),
            **({"scenes": {label: scene.record() for label, scene in self.scenes.items()}} if self.scenes else {}),
            **({"examples": examples} if examples else {}),
        }


def build_plan(spec: ExperimentSpec) -> Plan:
    """Configure the models, methods and metrics of an experiment.

    Texts are checked first. Models, which may need a download, are loaded only if a label or a preset needs them.

    Args:
        spec: The experiment.

    Returns:
        The plan, ready to be run.

    Raises:
        FringeError: For a name, setting, file or model that does not exist or does not fit.
    """
    chosen = _with_code(spec)
    scenes: dict[str, Scene] = {label: get_scene(scene) for label, scene in spec.scene.items()}
    named = _default_metrics(scenes) if spec.metrics is None else spec.metrics
    metrics: dict[str, Metric] = {label: get_metric(metric) for label, metric in named.items()}
    labels = [*chosen, *metrics, *scenes]
    texts_of = _by_known_label(spec.set, labels)
    for label in texts_of:
        if label not in labels:
            hint = did_you_mean(label, labels, f"compared: {', '.join(labels)}", cutoff=0.4)
            raise InputError(f"{label!r} is not compared here", argument="set", hint=hint)

    def with_set(given: Mapping[str, Configured]) -> dict[str, Configured]:
        return {label: with_settings(one, texts_of.get(label, {})) for label, one in given.items()}

    scenes = with_set(scenes)
    _check_truth(spec, scenes, metrics)
    metrics = with_set(metrics)
    methods = with_set({label: configured(_without_auto(method) or method) for label, method in chosen.items()})
    limited = [*metrics, *scenes]
    limits = _by_known_label(spec.limits, limited)
    for name in limits if "limits" in spec.model_fields_set else ():  # a default may name others
        if name not in limited:
            hint = did_you_mean(name, limited, f"its metrics: {', '.join(limited)}")
            raise InputError(f"{name!r} is no metric of this run", argument="limits", hint=hint)
    if spec.boxes is not None:
        read_boxes(spec.boxes)
    _require_images("references", *((spec.references,) if spec.references else ()))
    _require_images("data", *spec.data)
    tuned = None if spec.preset is None else read_preset(Path(spec.preset))
    alone = bool(scenes) and not any(scene.requires_model for scene in scenes.values())
    sources = {} if alone else spec.model or {SOURCE: default_model(spec.data)}
    data = spec.data
    if not data and (not scenes or any(scene.requires_images for scene in scenes.values())):
        if any(source != SOURCE for source in sources.values()):
            raise InputError("none given", argument="data", hint="name a folder of images")
        data = (SOURCE,)  # the embedded images where every model is the embedded one
    models = _given_models(spec, sources, chosen)
    if tuned is not None:
        models = _with_preset(models, str(spec.preset), tuned[0], tuned[1]["architecture"])
    models = tuple(replace(model, methods=with_set(model.methods)) for model in models)  # also those of a preset
    options = {name: getattr(spec, name) for name in options_of()}
    fields = {name: value for name, value in options.items() if name in Plan.__dataclass_fields__}
    return Plan(
        data=data,
        models=scene_models(scenes, models, data, methods) if scenes else models,
        metrics=metrics,
        scenes=scenes,
        limits={label: n for label, n in limits.items() if label in limited},
        exclude=frozenset(() if tuned is None else tuned[1]["images"]),
        **fields,
        more={name: value for name, value in options.items() if name not in fields},
    )


#: The metrics of an experiment with scenes that names none; its scenes add their own. Only maps of
#: images are smoothed.
LOCALISATION = ("mass_inside", "mass_inside:smooth", "rank_accuracy", "expected_hit")


def _default_metrics(scenes: Mapping[str, Scene]) -> dict[str, str]:
    names = DEFAULT_METRICS
    if scenes:
        images = any(scene.has_pixels for scene in scenes.values())
        common = [name for name in LOCALISATION if images or ":smooth" not in name]
        names = [*common, *(name for scene in scenes.values() for name in scene.metrics)]
    return {name: name for name in names}


def _check_truth(spec: ExperimentSpec, scenes: Mapping[str, Scene], metrics: Mapping[str, Metric]) -> None:
    """Raise InputError for a metric that needs a scene where there is none, and for what a scene decides itself: the
    class, and to draw."""
    lacking = [label for label, metric in metrics.items() if metric.requires_truth and not scenes]
    if lacking:
        hint = f"name a scene, such as scene='gridpg'; known: {', '.join(SCENES)}"
        raise InputError(f"{', '.join(lacking)}: it is not known what the model uses", argument="metrics", hint=hint)
    if scenes and "target" in spec.model_fields_set:
        raise InputError(f"got {spec.target!r} with a scene, which sets the explained class itself", argument="target")
    if scenes and not spec.sample:
        raise InputError("got False with a scene, which draws its examples", argument="sample", hint="leave it out")


def _with_code(spec: ExperimentSpec) -> dict[str, Any]:
    """The methods by label, with what the file has in place of ``file.py:NAME``; without a label it is that of its
    method."""
    chosen: list[tuple[str, Any]] = []
    for label, method in spec.methods.items():
        if not isinstance(method, str) or ".py:" not in method:
            chosen.append((label, method))
            continue
        try:
            read = read_target(method, trust_code=spec.trust_code)
        except InputError as error:
            raise InputError(error.message, argument="methods", hint=error.hint) from error
        chosen.append((read.label if label == method else label, read))
    return unique(chosen, "methods", "give each its own label, as in short=ig,long=ig")


def configured(method: str | Attributor) -> Attributor:
    """Resolve the name of a method, as :func:`fringe.attribution.get_method` does. Raises InputError for an unknown
    method or preset, or a method whose package is not installed."""
    result = get_method(method)
    if result.innermost.name == "geoig_knn" and importlib.util.find_spec("sklearn") is None:
        raise InputError("geoig_knn needs scikit-learn", argument="methods", hint=install_hint("graph"))
    require_package(result)
    return result


def _without_auto(method: str | Attributor) -> str | None:
    """``paper`` of ``paper:auto``, ``straight:paper`` of ``straight:paper:auto``; None for any other method."""
    if not isinstance(method, str) or (inner := innermost_reference(method)).rest != AUTO:
        return None
    tuned = inner.name in METHODS and set(preset_names()) <= set(METHODS[inner.name].presets)
    return method.removesuffix(f":{AUTO}") if tuned else None


def _by_known_label(values: Mapping[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    """Values by the label that they are meant for: one that is not known is spelled as the registries do. Those of
    ``LABEL.of`` are settings ``of.KEY`` of the method LABEL, a modifier."""
    known, result = set(labels), dict[str, Any]()
    for label, value in values.items():
        name, inner = label, ""
        while name not in known and split_path(name)[1] == "of":
            name, inner = split_path(name)[0], f"of.{inner}"
        for registry in () if name in known else (METHODS, METRICS, SCENES):
            name = canonical_name(name, registry)
        if isinstance(value, Mapping):
            texts = cast("Mapping[str, str]", value).items()
            value = {**result.get(name, {}), **{f"{inner}{key}": text for key, text in texts}}
        result[name] = value
    return result


def _require_images(argument: str, *texts: str) -> None:
    """Raise InputError for a text that names nothing; what is there is listed once, when the plan is resolved."""
    for text in texts:
        if url_of(text) or os.path.exists(text):
            continue
        try:
            next(find_inputs([text]))
        except ImageError as error:
            raise InputError(str(error), argument=argument) from error


def _given_models(spec: ExperimentSpec, models: Mapping[str, Any], chosen: Mapping[str, Any]) -> tuple[PlanModel, ...]:
    """The models with their methods; one without a label goes by its architecture."""

    def labelled(name: str, model: Any) -> tuple[str, PlanModel]:
        known = PlanModel(name, name, {}, spec.preprocessing, spec.trust_code, spec.model_output)
        if isinstance(model, str):
            known = replace(known, spec=model)
        else:
            loaded = model if isinstance(model, LoadedModel) else _in_memory(known, model)
            known = replace(known, spec=loaded.spec, output=loaded.output, loaded=loaded)
        label = known.load().label if name == model else name
        return label, replace(known, label=label)

    pairs = (labelled(name, model) for name, model in models.items())
    labels = unique(pairs, "model", "tell them apart with LABEL=SPEC").values()
    return tuple(replace(model, methods=_methods_of(model, chosen)) for model in labels)


def _in_memory(known: PlanModel, module: nn.Module) -> LoadedModel:
    """A copy of a module. Raises InputError where nothing says how images become its inputs."""
    recipe = None if known.preprocessing is None else Preprocessing.parse(known.preprocessing)
    if (recipe := recipe or stated_preprocessing(module)) is None:
        hint = "say how images become its inputs"
        raise InputError("none given for a model in memory", argument="preprocessing", hint=hint)
    digest = state_digest(module)
    return LoadedModel(known.spec, _copied(module), recipe, None, digest, type(module).__name__, known.output)


def _methods_of(model: PlanModel, chosen: Mapping[str, Any]) -> dict[str, Attributor]:
    """The methods of a model; ``paper:auto`` is the paper's setting for its architecture, or that for any network where
    the paper has none."""
    methods: dict[str, Attributor] = {}
    for name, method in chosen.items():
        if (plain := _without_auto(method)) is None:
            methods[name] = configured(method)
            continue
        architecture = model.load().architecture
        is_known = architecture in preset_names()
        base = get_method(plain)
        kind = type(base.innermost)
        if not is_known:
            warn_caller(f"{model.label}: the paper has no setting for {architecture}; {kind.name} is used")
        methods[name] = base.around(kind.preset(architecture) if is_known else kind())
    return methods


def _with_preset(
    models: tuple[PlanModel, ...], path: str, method: Attributor, architecture: str
) -> tuple[PlanModel, ...]:
    """The models with the ``method`` as the file ``path`` sets it for an ``architecture``. Raises InputError where it
    fits none."""
    name, architectures = method.name, {model.label: model.load().architecture for model in models}
    fitting = [model.label for model in models if architectures[model.label] == architecture]
    if not fitting:
        message = f"{path!r} was tuned for {architecture!r}; the models are {', '.join(architectures.values())}"
        raise InputError(message, argument="preset")
    if any(name not in model.methods for model in models if model.label in fitting):
        message = f"{path!r} sets {name}, which is not among the methods"
        hint = f"call the one that it replaces so, as in methods='{name}={method.label}'"
        raise InputError(message, argument="preset", hint=hint)
    return tuple(
        replace(model, methods={**model.methods, name: method}) if model.label in fitting else model for model in models
    )


def planned_work_of(plans: Iterable[Plan]) -> list[tuple[str, float, float]]:
    """As :func:`planned_work`, for all models of plans."""
    pairs = ((plan, model) for plan in plans for model in plan.models)
    return [w for p, a in pairs for w in planned_work(a.methods, p.metrics, p.limit(a.scene), p.limits, p.controls)]
