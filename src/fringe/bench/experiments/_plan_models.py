"""The models of a plan, given or made by a scene, and the methods that explain each."""

import contextlib
import copy
import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import nn

from fringe._outputs import OutputKind
from fringe.attribution import Attributor
from fringe.bench.scenes import Scene
from fringe.data import ImageRef, find_inputs
from fringe.errors import InputError
from fringe.metrics import Metric
from fringe.models import LoadedModel, Preprocessing, load_model, state_digest, stated_preprocessing


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        spec: Text for :func:`fringe.models.load_model`; a name where ``module`` is given.
        preprocessing: Replaces the preprocessing of the source.
        trust_code: Whether code of the model's author may run.
        module: A model in memory, in place of a source; it needs ``preprocessing``, here or as its attribute.
        output: What the model returns, as for :class:`fringe.Classifier`.
        scene: Makes the network, of the model that the fields above name if it requires one.
        number: Number of the network among those that the scene makes.
        data: The images that the scene is given.
        loaded: The model, where it is loaded already.
    """

    spec: str
    preprocessing: str | None = None
    trust_code: bool = False
    module: nn.Module | None = None
    output: OutputKind = "auto"
    scene: Scene | None = None
    number: int = 0
    data: tuple[str, ...] = ()
    loaded: LoadedModel | None = None

    def load(self, device: torch.device | str = "cpu", *, images: Sequence[ImageRef] | None = None) -> LoadedModel:
        """Load the model in evaluation mode, without parameter gradients; a module in memory is copied. ``images`` are
        those of ``data``, where they are listed already."""
        if self.scene is None:
            return self._given(device)
        given = self.given()
        if not self.scene.requires_images:
            images = []
        elif images is None:
            images = list(find_inputs(self.data))
        loaded = self.scene.network(self.number, given, images)
        return replace(loaded, module=loaded.module.eval().requires_grad_(False).to(device))

    def given(self) -> LoadedModel | None:
        """Load the model that the network of a scene is made of, on the CPU; None where it is made of none."""
        return self._given("cpu") if self.scene is not None and self.scene.requires_model else None

    def _given(self, device: torch.device | str) -> LoadedModel:
        if self.loaded is not None:
            module = self.loaded.module
            devices = {one.device for one in (*module.parameters(), *module.buffers())}
            elsewhere = any(one.type != torch.device(device).type for one in devices)
            return replace(self.loaded, module=copy.deepcopy(module).to(device)) if elsewhere else self.loaded
        recipe = None if self.preprocessing is None else Preprocessing.parse(self.preprocessing)
        if self.module is None:
            return load_model(
                self.spec, trust_code=self.trust_code, preprocessing=recipe, device=device, output=self.output
            )
        recipe = recipe or stated_preprocessing(self.module)
        if recipe is None:
            raise InputError(
                "none given for a model in memory", argument="preprocessing", hint="say how images become its inputs"
            )
        with torch.no_grad():  # copied weights of a scripted module would be part of a graph
            module, digest = copy.deepcopy(self.module).eval(), state_digest(self.module)
        nn.Module.requires_grad_(module, False)  # the method of a scripted module refuses
        return LoadedModel(self.spec, module.to(device), recipe, None, digest, type(self.module).__name__, self.output)


@dataclass(frozen=True)
class PlanModel:
    """One model of a plan under a ``label``, and the methods by label that explain it. ``scene`` is the label of the
    scene whose examples are explained, and ``given`` that of the model that its network is made of; empty for none."""

    label: str
    source: ModelSource
    methods: Mapping[str, Attributor]
    scene: str = ""
    given: str = ""


def scene_models(
    scenes: Mapping[str, Scene], given: Iterable[PlanModel], data: tuple[str, ...], methods: Mapping[str, Attributor]
) -> tuple[PlanModel, ...]:
    """The networks of scenes as models of a plan: ``gridpg:resnet20`` for one that is made of a given model,
    ``watermark-3`` for number 3 of a scene that trains its own. ``methods`` explain networks that are made of no given
    model."""
    made, models = list[PlanModel](), list(given)
    for label, scene in scenes.items():
        for model in models if scene.requires_model else [PlanModel("", ModelSource(scene.name), methods)]:
            for number in range(scene.networks):
                name = f"{label}:{model.label}" if model.label else label
                name = f"{name}-{number}" if scene.networks > 1 else name
                source = replace(model.source, scene=scene, number=number, data=data)
                made.append(PlanModel(name, source, model.methods, label, model.label))
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
    """Digest of the source text of the functions in the classes of a method or a metric, and in those of the method
    within it, or of the ``code`` of a function as a method; None if all are of this library, or no text can be read."""
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
