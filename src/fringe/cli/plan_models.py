"""The models of a plan: labels and specs from what was typed, and the settings that were tuned for a network."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fringe.attribution import Attributor, FRInGe, preset_names
from fringe.cli.options import EMBEDDED
from fringe.cli.plan_options import LABEL, PlanOptions
from fringe.cli.problems import remark
from fringe.cli.settings import named_method
from fringe.errors import InputError
from fringe.experiments import Arm, ModelSource, load
from fringe.tuning import read_preset

AUTO = "fringe:auto"
"""The paper's setting for a model's architecture."""

_LABEL = re.compile(rf"({LABEL})=(.+)")


@dataclass(frozen=True)
class TunedSetting:
    """A ``method`` as the file ``path`` sets it for an ``architecture``, and the ``images`` that it was tuned on."""

    path: str
    method: Attributor
    architecture: str
    images: frozenset[str]

    def over(self, arms: tuple[Arm, ...]) -> tuple[Arm, ...]:
        """The arms with this setting in place of the method's own. Raises InputError where it fits none."""
        name, architectures = self.method.name, {arm.label: load(arm).architecture for arm in arms}
        fitting = [arm.label for arm in arms if architectures[arm.label] == self.architecture]
        if not fitting:
            here = ", ".join(architectures.values())
            raise InputError(f"--preset: {self.path!r} was tuned for {self.architecture!r}; the models here are {here}")
        if any(name not in arm.methods for arm in arms if arm.label in fitting):
            raise InputError(f"--preset: {self.path!r} sets {name}, which is not among the methods")
        return tuple(
            replace(arm, methods={**arm.methods, name: self.method}) if arm.label in fitting else arm for arm in arms
        )


def read_tuned(path: str) -> TunedSetting:
    """Raises InputError on a file that is no preset."""
    method, about = read_preset(Path(path))
    return TunedSetting(path, method, about["architecture"], frozenset(about["images"]))


def read_specs(texts: Sequence[str]) -> list[tuple[str | None, str]]:
    """``SPEC`` and ``LABEL=SPEC`` texts as pairs of a label, None where there is none, and a spec."""
    matches = [(_LABEL.fullmatch(text), text) for text in texts]
    return [(match[1], match[2]) if match else (None, text) for match, text in matches]


def read_models(specs: Sequence[tuple[str | None, str]], options: PlanOptions) -> dict[str, ModelSource]:
    """The models by label; one without a label goes by its architecture."""
    found: dict[str, ModelSource] = {}
    for given, spec in specs:
        source = ModelSource(spec, options.preprocessing, options.trust_code)
        label = given or load(Arm("", source, {})).architecture
        if label in found:
            raise InputError(f"--model: {label} given twice; tell them apart with LABEL=SPEC")
        found[label] = source
    return found


def methods_of(label: str, source: ModelSource, pairs: Sequence[tuple[str, str]]) -> Mapping[str, Attributor]:
    """Methods by name from pairs of a name and a method's text."""
    return {name: _architecture_preset(label, source) if text == AUTO else named_method(text) for name, text in pairs}


def default_data(specs: Sequence[str]) -> tuple[str, ...]:
    """The images where none were named: there are some for the embedded model alone."""
    if all(spec == EMBEDDED for spec in specs):
        return (EMBEDDED,)
    raise InputError("--data: none given; name a folder of images")


def _architecture_preset(label: str, source: ModelSource) -> FRInGe:
    """The paper's setting for a model's architecture, or the default where it has none."""
    architecture = load(Arm(label, source, {})).architecture
    if architecture in preset_names():
        return FRInGe.preset(architecture)
    remark(f"{label}: the paper has no setting for {architecture}; the default is used")
    return FRInGe()
