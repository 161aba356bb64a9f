"""What every attribution method takes and gives, its results as files, and the methods by name.

A result is one safetensors file: its tensors bit for bit, and everything else as JSON in its header.
"""

import dataclasses
import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import fringe
from fringe._files.disk import MAPS_BYTES, UnfitFile, read_regular, require_local, write_atomic
from fringe._network.arguments import Part, is_joint
from fringe._strings.names import KINDS, Reference
from fringe.attribution._views import SEVERITY as SEVERITY
from fringe.attribution._views import Context, Trajectory, Views, method_label
from fringe.attribution._views import Verdict as Verdict
from fringe.baselines import parse_baseline
from fringe.classifier import PassCounts
from fringe.errors import InputError, install_hint, is_installed
from fringe.paths import JVPUse, Problem
from fringe.paths import Progress as Progress
from fringe.settings import Doc, Settings, canonical_name, checked_by, configured

#: Name and version of the format; a file of a later version is refused.
FORMAT, VERSION = "fringe/attribution", 1
#: Bytes of a header: 20,000 recorded paths take about 30 MB.
MAX_HEADER_BYTES = 2**26


def _metadata(data: bytes, name: str) -> dict[str, Any]:
    """The texts in the header of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    try:
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError("no header")
        return dict(json.loads(data[8 : 8 + length]).get("__metadata__") or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} is no safetensors file, or is damaged", argument="path") from error


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).numpy().tobytes())
    return total.hexdigest()


def _encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON data of a value; each tensor goes to ``tensors`` under the names that lead to it."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, "fields": _items(fields, name, tensors)}
    if isinstance(value, Mapping):
        return {"mapping": _items(cast("Mapping[str, Any]", value), name, tensors)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encoded(item, f"{name}{i}.", tensors) for i, item in enumerate(cast("Sequence[Any]", value))]
    return value


def _items(mapping: Mapping[str, Any], name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {key: _encoded(item, f"{name}{key}.", tensors) for key, item in mapping.items()}


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value of such data; nothing but an attribution and its parts is made, and nothing is executed."""
    if isinstance(value, list):
        return tuple(_decoded(item, tensors) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return value
    entry = cast("dict[str, Any]", value)
    if "tensor" in entry:
        return tensors[entry["tensor"]]
    items = {key: _decoded(item, tensors) for key, item in entry.get("fields", entry.get("mapping", {})).items()}
    return _KINDS[entry["kind"]](**items) if "kind" in entry else items


#: A setting that is a baseline by name, with its number if it has one: ``zero``, ``blur:0.1``.
Baseline = Annotated[
    str, checked_by(parse_baseline), Doc("where the path begins: zero, black, white, mean, blur, noise or uniform")
]


@dataclass(frozen=True, repr=False)
class Attribution(Views):
    """The maps of B images, and measurements of each. Row i of every field with a leading B belongs to image i.

    ``len(result)`` is B, ``result[i]`` and ``result[2:5]`` are the attributions of these images, and a loop goes over
    the images. For K classes per image, ``target``, scores and completeness are (B, K), ``values`` are (B, K, *S), the
    verdict is the worst one, and diagnostics of methods with a path for each class are (B, K), too.

    Attributes:
        values: Maps (B, *S) in the dtype and on the device of the inputs (float32 for half precision). A positive
            value is evidence for the target.
        target: Explained classes (B,).
        score: Explained score (B,) at the input.
        endpoint_score: Score (B,) at the end of the path.
        completeness_gap: Sum of the values minus ``score - endpoint_score`` (B,), in units of the score. NaN for a
            method without a completeness identity.
        completeness_residual: ``|gap| / |score - endpoint_score|`` (B,), the paper's epsilon_comp; 0 for a rounding.
        verdict: Whether the sum of each map is right and its path did its work: docs/trust.md.
        advice: The verdict in a sentence, with what to do.
        diagnostics: Measurements (B,) by name.
        passes: Passes that the call took.
        settings: Record of the method.
        trajectory: The path of each image, if it was requested.
        context: The inputs as a person reads them; :func:`fringe.explain` adds it.
        class_verdicts: Verdict and advice of each of K classes (B, K); empty for one class per image.
        contrast: Classes (B,) whose score is subtracted from that of the target, if the call named any.
        agreement: What occlusion says of each map (B,), from -1 to 1, if the call asked for it (``probe``): the
            correlation of the map's sums over parts of the input with what the score loses without each part. NaN where
            it is undefined. docs/trust.md says what it is worth.
        region: Weights (B, 1, H, W) of the focus, of images: 1 where the path moves freely, 0 for an unfocused path.
        parts: Names and shapes of the explained tensors, if the inputs were a tuple or a dictionary; ``maps`` has the
            map of each.
    """

    def of_class(self, k: int) -> "Attribution":
        """Select one of K classes.

        Args:
            k: Its number among the K of each image.

        Returns:
            The result of a call that explains this class alone, with the passes of this call.

        Raises:
            InputError: If there is no such class.
        """
        if self.target.dim() == 1:
            raise InputError("the maps are of one class per image", argument="k")
        if not 0 <= k < self.target.shape[1]:
            raise InputError(f"got {k}, expected 0 to {self.target.shape[1] - 1}", argument="k")
        diagnostics = {name: column if column.dim() == 1 else column[:, k] for name, column in self.diagnostics.items()}
        columns = self._tensors()
        if self.region is not None and self.region.dim() < self.values.dim():
            del columns["region"]  # all classes have one path
        return dataclasses.replace(
            self,
            **{name: column[:, k] for name, column in columns.items()},
            verdict=tuple(classes[k][0] for classes in self.class_verdicts),
            advice=tuple(classes[k][1] for classes in self.class_verdicts),
            diagnostics=diagnostics,
            trajectory=self.trajectory and tuple(path and path.of_class(k) for path in self.trajectory),
            class_verdicts=(),
        )

    def __getitem__(self, index: int | slice) -> "Attribution":
        try:
            rows = range(len(self))[index]
        except IndexError:
            raise IndexError(f"{index} is out of range: there are maps of {len(self)} inputs") from None
        return self.select([rows] if isinstance(rows, int) else rows)

    def __iter__(self) -> Iterator["Attribution"]:
        return (self[i] for i in range(len(self)))

    def save(self, path: str | Path) -> None:
        """Write the maps and everything else here to one file, which :func:`fringe.load` reads.

        Args:
            path: The file: safetensors with a JSON record in its header. A file of that name is replaced.

        Raises:
            OSError: If the file cannot be written.
        """
        require_local("path", path)
        tensors: dict[str, Tensor] = {}
        record = {"fringe": fringe.__version__, "content": _encoded(self, "", tensors)}
        text = json.dumps(record, ensure_ascii=False)
        metadata = {"format": f"{FORMAT}/{VERSION}", "record": text, "sha256": _digest(text, tensors)}
        write_atomic(Path(path), save_tensors(tensors, metadata))

    def with_context(self, context: Context) -> "Attribution":
        """Add what pictures need.

        Args:
            context: The inputs of these maps.

        Returns:
            The attribution with it.

        Raises:
            InputError: If it is of another number of inputs, or of inputs of another shape.
        """
        shape = (len(self), *self.values.shape[self.target.dim() :])
        if (came := tuple(context.inputs.shape)) != shape:
            raise InputError(f"got inputs of shape {came}, expected {shape}", argument="context")
        return dataclasses.replace(self, context=context)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Attribution":
        """Apply a function to every tensor.

        Args:
            function: Maps a tensor with a leading B.

        Returns:
            The attribution of what it returned.
        """
        tensors = {name: function(column) for name, column in self._tensors().items()}
        diagnostics = {name: function(column) for name, column in self.diagnostics.items()}
        context = None if self.context is None else self.context.map_tensors(function)
        return dataclasses.replace(self, **tensors, diagnostics=diagnostics, context=context)

    def noted(self, notes: Sequence[str], of_classes: Sequence[Sequence[str]] | None = None) -> "Attribution":
        """Add a note to the advice on each image, and on each of its classes.

        Args:
            notes: The notes (B).
            of_classes: Those of K classes (B, K); None: the same.

        Returns:
            The attribution with them.
        """
        each = of_classes or [[note] * len(row) for note, row in zip(notes, self.class_verdicts, strict=False)]
        rows = zip(self.class_verdicts, each, strict=True) if self.class_verdicts else ()
        return dataclasses.replace(
            self,
            advice=tuple(f"{why}; {note}" for why, note in zip(self.advice, notes, strict=True)),
            class_verdicts=tuple(
                tuple((v, f"{why}; {note}") for (v, why), note in zip(*row, strict=True)) for row in rows
            ),
        )

    def select(self, images: Sequence[int]) -> "Attribution":
        """Select images.

        Args:
            images: Their numbers.

        Returns:
            The attribution of these images, in this order.
        """
        index = torch.tensor(list(images), dtype=torch.long)
        return dataclasses.replace(
            dataclasses.replace(self, context=None).map_tensors(lambda column: column[index.to(column.device)]),
            context=None if self.context is None else self.context.select(images),
            verdict=tuple(self.verdict[i] for i in images),
            advice=tuple(self.advice[i] for i in images),
            trajectory=None if self.trajectory is None else tuple(self.trajectory[i] for i in images),
            class_verdicts=tuple(self.class_verdicts[i] for i in images) if self.class_verdicts else (),
        )

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors with a leading B, by name."""
        names = ("values", "target", "score", "endpoint_score", "completeness_gap", "completeness_residual")
        names += ("contrast", "agreement", "region")
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    @staticmethod
    def concat(parts: "Sequence[Attribution]") -> "Attribution":
        """Join attributions of different images.

        Args:
            parts: Attributions by the same method.

        Returns:
            Their images, one part after the other. Passes are added, those of a call that several parts are of once;
            settings are those of the first. A measurement that a part does not have is NaN there.

        Raises:
            InputError: If there is no part, or they are of several methods or shapes.
        """
        kinds = {(method_label(part.settings), tuple(part.values.shape[1:])) for part in parts}
        if len(kinds) != 1:
            came = "; ".join(f"{method} {shape}" for method, shape in sorted(kinds)) or "none"
            raise InputError(f"got {came}, expected maps of one shape by one method", argument="parts")

        def joined(columns: list[Tensor | None]) -> Tensor:
            like = next(column for column in columns if column is not None)
            nothing = (torch.full((len(part), *like.shape[1:]), torch.nan).to(like.device) for part in parts)
            return torch.cat([n if c is None else c for c, n in zip(columns, nothing, strict=True)])

        first, calls = parts[0], {id(part.passes): part.passes for part in parts}.values()
        contexts = [part.context for part in parts if part.context is not None]
        names = {name for part in parts for name in part._tensors()}
        measured = dict.fromkeys(name for part in parts for name in part.diagnostics)
        paths = [path for part in parts for path in part.trajectory or (None,) * len(part)]
        return dataclasses.replace(
            first,
            **{name: joined([getattr(part, name) for part in parts]) for name in names},
            verdict=tuple(verdict for part in parts for verdict in part.verdict),
            advice=tuple(advice for part in parts for advice in part.advice),
            diagnostics={name: joined([part.diagnostics.get(name) for part in parts]) for name in measured},
            passes=PassCounts(*map(sum, zip(*(vars(call).values() for call in calls), strict=True))),
            trajectory=tuple(paths) if any(part.trajectory is not None for part in parts) else None,
            context=Context.concat(contexts) if len(contexts) == len(parts) else None,
            class_verdicts=tuple(classes for part in parts for classes in part.class_verdicts),
        )


_KINDS = {kind.__name__: kind for kind in (Attribution, Context, Part, PassCounts, Trajectory)}


def load(path: str | Path) -> "Attribution":
    """Read an attribution that ``result.save(path)`` wrote. Files from strangers are safe to read.

    Args:
        path: The file.

    Returns:
        The attribution, on the CPU, equal to the saved one bit for bit.

    Raises:
        InputError: If it is no such file, is damaged, or was written by a later version.
        OSError: If the file cannot be read.
    """
    require_local("path", path)
    name = repr(str(path))
    try:
        data = read_regular(path, MAPS_BYTES)
    except UnfitFile as error:
        raise InputError(f"{name} {error.strerror}", argument="path") from error
    metadata = _metadata(data, name)
    form, _, version = str(metadata.get("format", "")).rpartition("/")
    if form != FORMAT or not version.isdecimal():
        hint = "files that result.save(path) wrote can be read"
        raise InputError(f"{name} is no saved attribution", argument="path", hint=hint)
    if int(version) > VERSION:
        message = f"{name} has version {version} of the format, and this is fringe {fringe.__version__}, which reads "
        raise InputError(f"{message}up to {VERSION}", argument="path", hint="install a newer fringe")
    try:
        tensors = load_tensors(data)
        if metadata["sha256"] != _digest(metadata["record"], tensors):
            raise InputError("its content does not match its checksum")
        result = _decoded(json.loads(metadata["record"])["content"], tensors)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} is damaged ({error})", argument="path") from error
    if not isinstance(result, Attribution) or not _fits(result):
        raise InputError(f"{name} is damaged (its parts do not match)", argument="path")
    return result


def _fits(result: Attribution) -> bool:
    """Whether every part has a row for each input; the file is checked against accidents by its checksum, and this is
    against a file that was made otherwise."""
    size, context = len(result.target), result.context
    columns = [result.values, result.score, result.endpoint_score, result.completeness_gap]
    columns += [result.completeness_residual, *result.diagnostics.values()]
    columns += [one for one in (result.region, result.agreement) if one is not None]
    rows = [*map(len, columns), len(result.verdict), len(result.advice)]
    rows += [len(part) for part in (result.trajectory, result.class_verdicts or None) if part is not None]
    shape = (size, *result.values.shape[result.target.dim() :])
    if is_joint(result.parts) and shape[1:] != (sum(part.size for part in result.parts),):
        return False
    return set(rows) == {size} and (context is None or tuple(context.inputs.shape) == shape)


@dataclass
class ProgressCounter:
    """Counts steps and reports them.

    Attributes:
        progress: Called with the steps done and the total.
        total: Number of steps.
        done: Those that are done.
    """

    progress: Progress | None
    total: int
    done: int = 0

    def tick(self, count: int) -> None:
        """Count ``count`` further steps."""
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """Count ``done`` steps in all: never fewer than before, nor more than the total."""
        before, self.done = self.done, max(self.done, min(done, self.total))
        if self.progress is not None and self.done > before:
            self.progress(self.done, self.total)


class ProgressStage:
    """Reports a stage of a call, of which steps ``before`` it and ``after`` it are known; ``total`` is that of the
    stage itself."""

    def __init__(self, progress: Progress | None, before: int = 0, after: int = 0):
        self.progress, self.before, self.after, self.total = progress, before, after, 0

    def __call__(self, done: int, total: int) -> None:
        self.total = total
        if self.progress is not None:
            self.progress(self.before + done, self.before + total + self.after)


class Attributor(Settings):
    """An attribution method: a frozen dataclass of settings.

    Attributes:
        name: Name in the registry; final classes set it.
        title: Name in listings and in figures.
        titles: Names in figures of what this method's name may be followed by, as ``occlusion`` in
            ``captum:occlusion``.
        source: Publication.
        presets: Settings by name: ``paper`` for comparisons with the FRInGe paper, which states no number of a method
            but its own, so that each class says where its numbers are from; ``official`` what the authors' code
            computes; ``quick`` our settings with some hundreds of gradients per image.
        uses_references: Whether maps depend on the reference images of the input space.
        many_targets: Whether one path serves K classes of an image: ``problem.target`` is then (B, K).
        path_of_targets: Whether that path depends on the K classes, so that a map does: pages then show one class.
        many_paths: Whether an image has several paths with different ends.
        has_path: Whether a result can hold the path of an image.
        is_complete: Whether maps add up to a change of the score, so that their gap is a number.
        number: The setting that a number in brackets after the name sets, as in ``smooth(3):ig``.
        form: How the name is written if it has a second part: ``captum:NAME``.
        package: The package that computes the maps, if it is another library; the extra of this name installs it.
        uses_gradients: Whether maps need gradients; if not, the model may be any function.
        needs_classes: Whether maps need the logits of all classes, so that no function can be the score.
    """

    record_key: ClassVar[str] = "method"
    title: ClassVar[str] = ""
    titles: ClassVar[Mapping[str, str]] = {}
    source: ClassVar[str] = ""
    uses_references: ClassVar[bool] = False
    many_targets: ClassVar[bool] = False
    path_of_targets: ClassVar[bool] = False
    many_paths: ClassVar[bool] = False
    has_path: ClassVar[bool] = True
    is_complete: ClassVar[bool] = True
    number: ClassVar[str | None] = None
    form: ClassVar[str] = ""
    package: ClassVar[str | None] = None
    needs_classes: ClassVar[bool] = False
    uses_gradients: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """The default name of this method: the text for :func:`get_method`, without the settings."""
        return method_label(self.record())

    @property
    def innermost(self) -> "Attributor":
        """The method itself, or the one inside modifiers."""
        return self

    def around(self, method: "Attributor") -> "Attributor":
        """Apply the modifiers of this method to another one.

        Args:
            method: The method in place of :attr:`innermost`.

        Returns:
            The method with these modifiers; itself where there are none.
        """
        return method

    def fitted(self, problem: Problem) -> Self:
        """Return the settings that are used, and recorded, for inputs of this kind.

        Args:
            problem: What is explained.

        Returns:
            These settings, with the values that follow from the inputs.
        """
        return self

    @abstractmethod
    def attribute(self, problem: Problem) -> Attribution:
        """Explain images.

        Args:
            problem: The images and the model. The caller holds ``problem.model.session`` open and counts the passes.

        Returns:
            The maps of all images.
        """

    def check_usable(self) -> None:
        """Check, before anything is computed, that these settings can explain an image at all.

        Raises:
            InputError: If they cannot.
        """

    def jvp_use(self, problem: Problem) -> JVPUse:
        """Say what the method does with Jacobian-vector products.

        Args:
            problem: What is explained.

        Returns:
            ``"none"``: it takes gradients alone; ``"optional"``: its map is right without them; ``"required"``: the
            model must have second derivatives, or forward-mode ones.
        """
        return "none"

    @property
    def accepts_baseline(self) -> bool:
        """Whether the method has a setting ``baseline``, which a caller's own baseline replaces."""
        return "baseline" in self.record()

    @property
    def planned_passes(self) -> float | None:
        """Forward and backward passes of one image, to the order of magnitude; None if other things decide."""
        return None


def explain_by_size(
    explain: Callable[[list[int]], Attribution], sizes: Sequence[int], progress: Progress | None
) -> Attribution:
    """Explain images (B) of one size after those of another by ``explain(images)``, and return all in their order."""
    groups = [[i for i, other in enumerate(sizes) if other == size] for size in sorted(set(sizes))]
    parts, order = list[Attribution](), list[int]()
    for group in groups:
        parts.append(explain(group))
        order += group
        if progress is not None:
            progress(len(order), len(sizes))
    return Attribution.concat(parts).select(torch.tensor(order).argsort().tolist())


# -- the methods by name ----------------------------------------------------------------------------------------------


#: The registered methods: name to class. ``_registry.py`` fills it.
METHODS: dict[str, type[Attributor]] = KINDS


def get_method(method: str | Attributor | type[Attributor]) -> Attributor:
    """Return a configured method.

    Args:
        method: A configured method, which is returned as it is; the class of one; or a name: of a registered method,
            with a preset after a colon, as in ``"ig:paper"``; of a method of another library, ``"captum:occlusion"``;
            or of a modifier with the method that it modifies, ``"straight:fringe:fast"`` or ``"smooth(3):ig"``.

    Returns:
        The method, with its default settings unless a preset is named.

    Raises:
        InputError: If there is no such method or preset.
    """
    if isinstance(method, type) and issubclass(method, Attributor):  # pyright: ignore[reportUnnecessaryIsInstance]
        return method()
    if isinstance(method, str) and Reference.parse(method).name.endswith(".py"):
        hint = "see 'How do I score my own method?' in docs/questions.md"
        message = f"got {method!r}, but only fringe benchmark, compare and verify read a function of a file"
        if method.endswith(".py"):
            message, hint = f"{method!r} names no function", f"name one, as in {method}:saliency"
        raise InputError(message, argument="method", hint=hint)
    if isinstance(method, (list, tuple)) or (isinstance(method, str) and "," in method):
        hint = "several methods are compared by 'fringe compare --methods A,B', in Python by fringe.compare"
        raise InputError(f"got {method!r}, expected one method", argument="method", hint=hint)
    hint = "fringe.attribution.read_target makes a method of a function" if callable(method) else ""
    return configured(method, Attributor, METHODS, "FRInGe()", hint)


def innermost_reference(text: str) -> Reference:
    """Return the method and the preset that a name, as for :func:`get_method`, holds inside all modifiers."""
    reference = Reference.parse(canonical_name(text, METHODS))
    while reference.rest is not None and "of" in getattr(METHODS.get(reference.name), "__dataclass_fields__", ()):
        reference = Reference.parse(reference.rest)
    return reference


def require_package(method: Attributor) -> None:
    """Raise InputError if a method cannot explain any image, or the package that it needs is not installed."""
    method.check_usable()
    package = method.package
    if package is not None and not is_installed(package):
        message, hint = f"{method.label} needs {package}, which is not installed", install_hint(package)
        raise InputError(message, argument="method", hint=hint)


def method_of_record(record: Mapping[str, Any]) -> Attributor:
    """Make a method from the record of any registered one, possibly read from JSON.

    Raises InputError if no method has this name, or it does not take a setting.
    """
    name = record.get(Attributor.record_key)
    if name not in METHODS:
        raise InputError(f"got {name!r}, which is no registered method", argument="method")
    return METHODS[name].from_record(record)
