"""A run that explains images: from files to results in a folder, batch by batch."""

import dataclasses
import functools
import hashlib
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

import fringe
from fringe._files import MAPS_BYTES, read_regular
from fringe._printable import plain
from fringe.attribution import Attribution, attribute
from fringe.classifier import Classifier
from fringe.data import ImageError, InputRef
from fringe.errors import InputError
from fringe.experiments import changes
from fringe.explanations._folder import CONTACT, MAP, SUMMARY, ResultFolder, describe_write_error
from fringe.explanations._inputs import Failure, References, configured_method, file_digest, find_images, open_image
from fringe.explanations._spec import ExplainSpec, choose_model, read_class_names
from fringe.models import LoadedModel, ModelError, Preprocessing, load_model

#: Version of the files of a run. 2: the settings, the options and checksums are recorded.
FORMAT = 2
#: Images of a batch: what is computed together is lost together when the process is killed.
BATCH_IMAGES = 16
#: Numbers of input of a batch, on the CPU and elsewhere: 4 and 16 images of 224 x 224 RGB.
BATCH_NUMBERS = {"cpu": 600_000}
OTHER_BATCH_NUMBERS = 2_400_000
#: The same for a batch size that was given: with the snapshots of a path, 14 times as many are held, here 560 MB.
MAX_BATCH_NUMBERS = 10_000_000
#: Seconds between two writes of the summary: each holds one entry per image.
SUMMARY_INTERVAL = 5.0
#: Difference of two probabilities of a class that is rounding; an accelerator may multiply in a shorter format.
TOLERANCE, OTHER_TOLERANCE = 1e-4, 5e-2

Progress = Callable[[float, int], None]
_ENTRY = (
    *("id", "source", "label", "prediction", "target", "verdict", "advice", "score", "endpoint_score"),
    *("completeness_gap", "completeness_residual", "steps", "seconds"),
)


@dataclass(frozen=True)
class Explanation:
    """One explained image.

    Attributes:
        folder: Folder of its files.
        record: Content of its ``explanation.json``.
        reused: Whether it was computed by an earlier run.
    """

    folder: Path
    record: Mapping[str, Any]
    reused: bool

    def load(self) -> dict[str, Tensor]:
        """Read the attribution ``values`` and the model's ``input``, each (C, H, W)."""
        return load(read_regular(self.folder / MAP, MAPS_BYTES))


@dataclass(frozen=True)
class _Prepared:
    ref: InputRef
    sha256: str | None
    x: Tensor


def explain_images(
    inputs: Sequence[str],
    out: str | Path,
    spec: ExplainSpec | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[Explanation | Failure]:
    """Explain images and write each result into a folder as soon as it is computed.

    A call with the same options continues an interrupted run: an intact result of the same image and settings is not
    computed again. The folder of an image holds ``attribution.safetensors``, ``explanation.json`` and pictures; the
    folder ``out`` itself gets ``summary.json`` and ``contact.png``.

    Args:
        inputs: Files, folders, or ``embedded:digits[:INDEX|:START:STOP]``.
        out: Folder of the results.
        spec: Options; None builds them from ``options``.
        overwrite: Replace results of other settings, and write into a folder with other files.
        progress: Called with the steps done and planned of the current batch.
        **options: Fields of :class:`ExplainSpec`.

    Returns:
        An iterator over one result per input, in their order; inputs that lead to no image come last.

    Raises:
        InputError: If an option makes no sense, or the folder holds results of other settings.
        OSError: If the folder cannot be written at all.
    """
    if spec is not None and options:
        raise InputError("got a spec and single options, expected one of the two", argument="spec")
    run = ExplanationRun(inputs, Path(out), spec or ExplainSpec(**options), overwrite=overwrite)
    run.open()
    return run.results(progress)


class ExplanationRun:
    """One run of :func:`explain_images`, step by step.

    The constructor reads options and finds images; :meth:`open` loads the model and checks the folder; :meth:`results`
    computes. ``document`` is the content of ``summary.json``, ``unwritten`` the errors of files that could not be
    written.

    Args:
        inputs: As in :func:`explain_images`.
        out: Folder of the results.
        spec: Options.
        overwrite: As in :func:`explain_images`.

    Raises:
        InputError: If an option makes no sense.
    """

    loaded: LoadedModel

    def __init__(self, inputs: Sequence[str], out: Path, spec: ExplainSpec, *, overwrite: bool = False):
        self.spec, self.method = spec, configured_method(spec)
        self._out, self._overwrite = out, overwrite
        self._class_names = read_class_names(spec.classes)
        self.refs, self.missing = find_images(inputs)
        self._model_spec = choose_model(spec.model, inputs) if self.refs else ""
        self.results_so_far: list[Explanation | Failure] = []

    @property
    def unwritten(self) -> Sequence[OSError]:
        """Errors of the files of the run itself that could not be written."""
        return list(self._folder.unwritten.values())

    @property
    def explained(self) -> int:
        """Images that have a result."""
        return sum(isinstance(result, Explanation) for result in self.results_so_far)

    def open(self) -> None:
        """Load the model and the references, and check the folder.

        Raises:
            FringeError: If the model cannot be loaded or the folder holds results of other settings.
            OSError: If the folder cannot be written.
        """
        spec = self.spec
        device = ("cuda" if torch.cuda.is_available() else "cpu") if spec.device == "auto" else spec.device
        recipe = None if spec.preprocessing is None else Preprocessing.parse(spec.preprocessing)
        self.loaded = load_model(
            self._model_spec,
            trust_code=spec.trust_code,
            preprocessing=recipe,
            class_names=self._class_names,
            device=device,
        )
        if spec.preset is not None and spec.preset.endswith(".json"):
            configured_method(spec, self.loaded.architecture)
        self._device = torch.device(device)
        self._classifier = Classifier(
            self.loaded.module, score=spec.score, output=spec.model_output, batch_size=spec.batch_size
        )
        self._references = References(spec, self.loaded.preprocessing, self._device)
        self._folder = ResultFolder(self._out, overwrite=self._overwrite)
        self._refuse_other_settings()
        self._model_checked = False
        self._write_summary(complete=False)
        for error in self.unwritten:
            raise error  # before hours of work whose results cannot be written

    def results(self, progress: Progress | None = None) -> Generator[Explanation | Failure]:
        """Compute and write what is missing, in the order of the inputs; yield every result."""
        written = time.monotonic()
        try:
            for batch in self._batches():
                for result in self._explain(batch, progress):
                    self.results_so_far.append(result)
                    yield result
                if time.monotonic() - written > SUMMARY_INTERVAL:
                    self._write_summary(complete=False)
                    written = time.monotonic()
        except BaseException:
            self._write_summary(complete=False)
            raise
        for failure in self.missing:
            self.results_so_far.append(failure)
            yield failure
        self._write_contact_sheet()
        self.document = self._write_summary(complete=True)

    # Settings

    def record(self) -> dict[str, Any]:
        """What all results of the run share, as JSON data."""
        loaded, spec = self.loaded, self.spec
        return {
            "format": FORMAT,
            "fringe": fringe.__version__,
            "versions": {"fringe": fringe.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "model": {"spec": loaded.spec, "architecture": loaded.architecture, "digest": loaded.digest},
            "preprocessing": loaded.preprocessing.record(),
            "exif": spec.exif,
            "command": "explain",
            "settings": plain(self.method.record()),
            "references": self._references.record(),
            "model_output": spec.model_output,
            "score_kind": spec.score,
            "seed": spec.seed,
            "device": str(self._device),
            "dtype": "float32",
            "setting": self.setting,
            "options": spec.record(),
        }

    @functools.cached_property
    def setting(self) -> dict[str, Any]:
        """All that shapes a result except the image; results of one folder share it."""
        loaded, spec = self.loaded, self.spec
        return {
            "format": FORMAT,
            "model": {
                "architecture": loaded.architecture,
                "weights": loaded.digest,
                "structure": hashlib.sha256(str(loaded.module).encode()).hexdigest()[:32],
                "output": spec.model_output,
            },
            "preprocessing": {**plain(loaded.preprocessing.record()), "exif": spec.exif},
            "class_names": plain(self._class_names),
            "method": plain(self.method.record()),
            "references": self._references.digests if self.method.uses_references else None,
            "target": spec.target,
            "score": spec.score,
            "seed": spec.seed,
            "dtype": "float32",
        }

    def _refuse_other_settings(self) -> None:
        """Compare with the results in the folder. Results that are not among the inputs are named if they stay."""
        summary, setting = self._folder.summary(), self.setting
        if summary is None:
            return
        earlier = summary.get("setting", {})
        differences = changes(earlier, setting)
        if not differences:
            return
        if not self._overwrite:
            known = "; ".join(differences) if earlier else f"format: {summary.get('format', 1)}, now {FORMAT}"
            message = f"{str(self._out)!r} holds results of other settings ({known})"
            hint = "name another folder, or pass overwrite=True to replace them"
            raise InputError(message, argument="out", hint=hint)
        current = {ref.id for ref in self.refs}
        stored = [entry["id"] for entry in summary.get("inputs", ()) if "error" not in entry]
        left = [name for name in stored if name not in current]
        if left:
            names = ", ".join([*left[:5], *(["..."] if len(left) > 5 else [])])
            warnings.warn(f"{len(left)} results of other settings stay in {str(self._out)!r}: {names}", stacklevel=2)

    # Images

    def _batches(self) -> Iterator[list[_Prepared | Explanation | Failure]]:
        """Prepared images in their order, with finished results in between."""
        spec = self.spec
        if spec.batch_size == "auto":
            images, numbers = BATCH_IMAGES, BATCH_NUMBERS.get(self._device.type, OTHER_BATCH_NUMBERS)
        else:
            images, numbers = spec.batch_size, MAX_BATCH_NUMBERS
        batch: list[_Prepared | Explanation | Failure] = []
        for ref in self.refs:
            batch.append(self._prepare(ref))
            held = [item.x.numel() for item in batch if isinstance(item, _Prepared)]
            if len(held) >= images or sum(held) >= numbers or (not held and len(batch) >= BATCH_IMAGES):
                yield batch
                batch = []
        if batch:
            yield batch

    def _prepare(self, ref: InputRef) -> _Prepared | Explanation | Failure:
        sha256 = file_digest(ref.origin)  # before it is opened: a file that changes in between is explained again
        stored = self._folder.read(ref.id)
        if stored is not None and self._is_current(stored, ref, sha256):
            self._check_model(stored, ref)
            return Explanation(self._folder.result_path(ref.id), stored, reused=True)
        try:
            return _Prepared(ref, sha256, open_image(ref, self.loaded.preprocessing, self.spec.exif))
        except (ImageError, ModelError) as error:
            return Failure.of(ref, error)

    def _is_current(self, stored: Mapping[str, Any], ref: InputRef, sha256: str | None) -> bool:
        """Whether a stored result is of this image and these settings, with its pictures where they are asked for."""
        same_image = (stored["id"], stored["sha256"]) == (ref.id, sha256)
        if isinstance(ref.origin, int):
            same_image = same_image and stored["source"] == ref.source
        elif sha256 is None:
            return False
        has_figures = "overlay.png" in stored["files"]
        return same_image and not changes(stored["setting"], self.setting) and (has_figures or not self.spec.figures)

    def _check_model(self, stored: Mapping[str, Any], ref: InputRef) -> None:
        """Compare the model's answer with the first reused result: a digest of weights does not see the code.

        Raises:
            InputError: If they differ by more than rounding.
        """
        if self._model_checked:
            return
        tensors = load(read_regular(self._folder.result_path(ref.id) / MAP, MAPS_BYTES))
        logits = self._classifier.logits(tensors["input"][None].to(self._device))[0].cpu()
        now = logits.double().softmax(-1)
        tolerance = TOLERANCE if stored["device"] == str(self._device) else OTHER_TOLERANCE
        apart = max(abs(float(now[entry["class"]]) - entry["probability"]) for entry in stored["top"])
        if not apart <= tolerance:
            message = f"its probabilities of {ref.source!r} differ by {apart:.2g} from those in {str(self._out)!r}"
            hint = "its code or its libraries changed; name another folder for the new results"
            raise InputError(message, argument="model", hint=hint)
        self._model_checked = True

    # Computation

    def _explain(
        self, batch: Sequence[_Prepared | Explanation | Failure], progress: Progress | None
    ) -> list[Explanation | Failure]:
        """Results of a batch in its order; images of one size are computed together, and written at once."""
        groups: dict[tuple[int, ...], list[_Prepared]] = {}
        for item in batch:
            if isinstance(item, _Prepared):
                groups.setdefault(tuple(item.x.shape), []).append(item)
        computed = {
            result[0]: result[1] for group in groups.values() for result in self._explain_group(group, progress)
        }
        return [computed[item.ref.id] if isinstance(item, _Prepared) else item for item in batch]

    def _explain_group(
        self, group: Sequence[_Prepared], progress: Progress | None
    ) -> list[tuple[str, Explanation | Failure]]:
        start = time.perf_counter()
        x = torch.stack([item.x for item in group]).to(self._device)
        try:
            logits = self._classifier.logits(x).cpu()
        except RuntimeError as error:  # sizes may differ, and one that the model cannot take must not stop the others
            reason = f"the model cannot take an input of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
            return [(item.ref.id, Failure.of(item.ref, reason)) for item in group]
        names = self.loaded.class_names
        if names is not None and len(names) != logits.shape[1]:
            raise InputError(f"got {len(names)} names for a model of {logits.shape[1]} classes", argument="classes")
        result = attribute(
            self._classifier,
            x,
            method=self.method,
            target=self.spec.target,
            seed=self.spec.seed,
            telemetry=self.spec.figures,
            bad_images="mark",
            progress=progress,
            space=self._references.space(x),
            ids=[item.ref.id for item in group],
        )
        result = dataclasses.replace(result, values=result.values.cpu())
        seconds = time.perf_counter() - start
        return [
            (item.ref.id, self._write(item, logits[row], result, row, seconds, len(group)))
            for row, item in enumerate(group)
        ]

    def _write(
        self, item: _Prepared, logits: Tensor, result: Attribution, row: int, seconds: float, images: int
    ) -> Explanation | Failure:
        ref = item.ref
        if result.verdict[row] in ("nan_input", "nan_logits"):
            return Failure.of(ref, result.advice[row])
        record = {**self._image_record(item, logits, result, row, seconds, images), **self.record()}

        def fill(folder: Path) -> None:
            tensors = {"values": result.values[row].contiguous(), "input": item.x.contiguous()}
            (folder / MAP).write_bytes(save(tensors))  # the errors of save_file have no number
            if self.spec.figures:
                from fringe.explanations._pictures import draw_pictures

                draw_pictures(folder, item.x, result, row, record, self.loaded.preprocessing)

        try:
            sealed = self._folder.write(ref.id, record, fill)
        except InputError as error:
            return Failure.of(ref, error)
        except OSError as error:
            return Failure.of(ref, describe_write_error(error))
        return Explanation(self._folder.result_path(ref.id), sealed, reused=False)

    def _image_record(
        self, item: _Prepared, logits: Tensor, result: Attribution, row: int, seconds: float, images: int
    ) -> dict[str, Any]:
        ref, target, steps = item.ref, int(result.target[row]), result.diagnostics.get("steps")
        top = self._top_classes(logits)
        return {
            "id": ref.id,
            "source": ref.source,
            "label": ref.label,
            "prediction": top[0],
            "target": {"class": target, "name": self._class_name(target)},
            "verdict": result.verdict[row],
            "advice": result.advice[row],
            **{
                name: plain(getattr(result, name)[row])
                for name in ("score", "endpoint_score", "completeness_gap", "completeness_residual")
            },
            "steps": None if steps is None else int(steps[row]),
            "seconds": round(seconds / images, 3),
            "sha256": item.sha256,
            "classes": logits.numel(),
            "top": top,
            "diagnostics": {name: plain(values[row]) for name, values in result.diagnostics.items()},
            "cost": {
                "images": images,
                "seconds": round(seconds, 3),
                "passes": dataclasses.asdict(result.passes),
            },
        }

    def _top_classes(self, logits: Tensor, count: int = 5) -> list[dict[str, Any]]:
        best = logits.double().softmax(-1).topk(min(count, logits.numel()))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [{"class": k, "name": self._class_name(k), "probability": p} for p, k in pairs]

    def _class_name(self, index: int) -> str | None:
        names = self.loaded.class_names
        return names[index] if names is not None and index < len(names) else None

    # The files of the run

    def _write_summary(self, *, complete: bool) -> dict[str, Any]:
        results = self.results_so_far
        explained = [result for result in results if isinstance(result, Explanation)]
        verdicts = Counter(result.record["verdict"] for result in explained)
        sheet = complete and self.spec.figures and explained and CONTACT not in self._folder.unwritten
        self.document = {
            **self.record(),
            "complete": complete,
            "counts": {
                "inputs": len(self.refs) + len(self.missing),
                "explained": len(explained),
                "reused": sum(result.reused for result in explained),
                "failed": len(results) - len(explained),
                "verdicts": dict(verdicts),
            },
            "contact_sheet": CONTACT if sheet else None,
            "inputs": [_entry(result) for result in results],
        }
        self._folder.attempt_json(SUMMARY, self.document)
        return self.document

    def _write_contact_sheet(self) -> None:
        explained = [result for result in self.results_so_far if isinstance(result, Explanation)]
        if not explained or not self.spec.figures:
            return
        from fringe.explanations._pictures import SHEET, contact_cell, draw_contact_sheet

        recipe = self.loaded.preprocessing
        cells = [contact_cell(result.load(), result.record, recipe) for result in explained[:SHEET]]
        title = f"{self.loaded.architecture} · {self.method.name}"
        self._folder.attempt(CONTACT, lambda path: draw_contact_sheet(cells, title, len(explained), path))


def _entry(result: Explanation | Failure) -> dict[str, Any]:
    """One entry of ``summary.json``."""
    if isinstance(result, Explanation):
        return {**{name: result.record[name] for name in _ENTRY}, "folder": result.folder.name}
    return {"id": result.id, "source": result.source, "label": result.label, "error": result.reason}
