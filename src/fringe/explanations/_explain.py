"""A run that explains images: each result is written as soon as it is computed, and shown at the end in a table."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import torch
from safetensors.torch import save
from torch import Tensor

from fringe._files.disk import StoreFull, disk_error
from fringe._files.records import changes, describe_changes, digest
from fringe._network.arguments import ForwardArguments
from fringe._strings.class_names import resolve_class_name
from fringe._strings.formats import plain
from fringe._strings.names import method_title
from fringe._strings.tables import Cell, Row, Table
from fringe.attribution import (
    SENTENCES,
    Attribution,
    attribute,
    preset_label,
    setting_title,
    tone_of,
)
from fringe.classifier import Target
from fringe.data import ImageRef
from fringe.detection import Detector
from fringe.errors import (
    FringeError,
    InputError,
    is_installed,
    is_transient,
    model_error,
    warn_caller,
)
from fringe.explanations._base import (
    Explanation,
    Failure,
    ImageRun,
    Prepared,
    Progress,
    by_shape,
    configured_method,
    file_digest,
    iter_batches,
)
from fringe.explanations._call import followed
from fringe.explanations._folder import CONTACT, INDEX, MAP, PAGE
from fringe.explanations._spec import POINTS, ExplainSpec
from fringe.inputs import with_boxes
from fringe.models import Answers

if TYPE_CHECKING:
    from fringe.page import Box

#: Rows of the table of explained images; the rest is in the summary.
SHOWN_IMAGES = 40


def _image_row(entry: Mapping[str, Any]) -> Row:
    if "error" in entry:
        return [entry["id"] or entry["source"], "", Cell("failed", style="bad"), "", "", "", "", ""]
    best, steps, verdict = entry["prediction"], entry["steps"], entry["verdict"]
    return [
        *(entry["id"], _class(best), Cell(verdict, style=tone_of(verdict)), Cell(entry.get("agreement"), 2)),
        Cell(best["probability"], 3),
        *(Cell(entry["completeness_residual"], 2, share=True), "" if steps is None else steps),
        Cell(entry["seconds"], 2),
    ]


def _entry(result: Explanation) -> dict[str, Any]:
    """A result as an entry of ``summary.json``."""
    return {key: result.record[key] for key in _KEYS if key in result.record} | {"folder": result.folder.name}


def _class(entry: Mapping[str, Any]) -> str:
    return entry["name"] or f"class {entry['class']}"


def _explained(entry: Mapping[str, Any]) -> str:
    """The explained class of an image, and the one that it is compared with."""
    return _class(entry["target"]) + (f", not {_class(entry['contrast'])}" if "contrast" in entry else "")


#: Version of the files of a run. 2: the settings, the options and checksums are recorded.
FORMAT = 2
#: Images of a batch: what is computed together is lost together when the process is killed.
BATCH_IMAGES = 16
#: Numbers of input of a batch, on the CPU and elsewhere: 4 and 16 images of 224 x 224 RGB.
BATCH_NUMBERS = {"cpu": 600_000}
OTHER_BATCH_NUMBERS = 2_400_000
#: The same for a batch size that was given, of which 14 times as many are held: 560 MB. The points of a path that a
#: page shows, with a map of each class at each, hold more.
MAX_BATCH_NUMBERS = 10_000_000
#: Seconds between two writes of the summary: each holds one entry per image.
SUMMARY_INTERVAL = 5.0

_SCORES = ("score", "endpoint_score", "completeness_gap", "completeness_residual", "agreement")
_KEYS = ("id", "source", "label", "prediction", "target", "contrast", "verdict", "advice", *_SCORES, "steps", "seconds")


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
    computed again. The folder of an image holds ``attribution.safetensors``, ``explanation.json``, pictures, the page
    ``explanation.html`` and the animation ``path.webp``; the folder ``out`` itself gets ``summary.json``,
    ``contact.png`` and ``index.html``, which links the pages.

    Args:
        inputs: One or several of files, folders, and ``embedded:digits[:INDEX|:START:STOP]``.
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
        TransientError: From the iterator, where no space is left; the results before stay, and the same call goes on.
    """
    if spec is not None and options:
        raise InputError("got a spec and single options, expected one of the two", argument="spec")
    run = ExplanationRun(inputs, Path(out), spec or ExplainSpec(**options), overwrite=overwrite)
    run.open()
    return run.results(progress)


class ExplanationRun(ImageRun[ExplainSpec]):
    """One run of :func:`explain_images`, step by step: :meth:`open`, then :meth:`results`.

    Attributes:
        method: The configured method.
        explained: The results that :meth:`results` has yielded.
    """

    command = "explain"

    def __init__(self, inputs: Sequence[str], out: Path, spec: ExplainSpec, *, overwrite: bool = False):
        if spec.figures and not is_installed("matplotlib"):  # it is imported after the first maps
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        self.method = configured_method(spec)
        super().__init__(inputs, out, spec, overwrite=overwrite)
        self.explained: list[Explanation] = []
        self._entries, self._earlier = list[dict[str, Any]](), list[Explanation]()
        self._model_checked = self._resumes = False

    def results(self, progress: Progress | None = None) -> Generator[Explanation | Failure]:
        """Compute and write what is missing, in the order of the inputs; yield every result."""
        if self.spec.batch_size == "auto":
            images, numbers = BATCH_IMAGES, BATCH_NUMBERS.get(self.device.type, OTHER_BATCH_NUMBERS)
        else:
            # how many times the numbers of the inputs are held, with the points of the paths and the maps at each
            held = POINTS * (1 + (self.spec.top if self._many else 1)) + 2 if self.spec.figures else 2
            images, numbers = self.spec.batch_size, MAX_BATCH_NUMBERS * 14 // max(14, held)
        written = time.monotonic()
        with self.folder.claimed(digest(self.setting)):
            try:
                for batch in iter_batches(map(self._stored_or_prepared, self.refs), images, numbers):
                    for result in self._explain(batch, progress):
                        yield self._add(result)
                    if time.monotonic() - written > SUMMARY_INTERVAL:
                        self._write_summary(complete=False)
                        written = time.monotonic()
            except BaseException:
                self._find_earlier()
                self._write_summary(complete=False)
                raise
            yield from map(self._add, self.missing)
            self._find_earlier()  # at the end: another run of these settings may have written some meanwhile
            self._write_overviews()
            self._write_summary(complete=True)

    def _add(self, result: Explanation | Failure) -> Explanation | Failure:
        """Add a result, and its entry of ``summary.json``."""
        if isinstance(result, Failure):
            self.failures.append(result)
            self._entries.append(result.entry())
        else:
            self.explained.append(result)
            self._entries.append(_entry(result))
        return result

    def describe(self) -> Sequence[str | Table]:
        """Return a table with one row per image, for people."""
        entries, reused = self.document["inputs"], self.document["counts"]["reused"]
        others = any("error" not in e and _explained(e) != _class(e["prediction"]) for e in entries)
        chance = "p(prediction)" if others else "p"  # whatever is explained
        rows = [_image_row(entry) for entry in entries[:SHOWN_IMAGES]]
        names = ("id", "prediction", "verdict", "occlusion", chance, "residual", "steps", "seconds")
        if others:
            explained = ["" if "error" in entry else _explained(entry) for entry in entries]
            rows = [[*row[:2], name, *row[2:]] for row, name in zip(rows, explained, strict=False)]
            names = (*names[:2], "explained", *names[2:])
        parts: list[str | Table] = [Table(names, rows)]
        if len(entries) > SHOWN_IMAGES:
            parts.append(f"… and {len(entries) - SHOWN_IMAGES} more, in summary.json")
        if any("error" not in entry for entry in entries):
            parts.append("A verdict is about the sum of a map. It does not say whether the map marks the right parts.")
        parts += ["occlusion: correlation of map and loss of the score over 25 removed parts"] * self.spec.probe
        seen = dict.fromkeys(entry["verdict"] for entry in entries if "error" not in entry)
        parts += [f"{one}: {SENTENCES[one][1]}" for one in seen if one != "ok" and one in SENTENCES]
        return [*parts, *([f"reused from an earlier run: {reused}"] if reused else [])]

    def record(self) -> dict[str, Any]:
        """What all results of the run share, as JSON data."""
        used = plain(self.method.record())
        settings = {"format": FORMAT, "title": setting_title(used), "settings": used, "setting": self.setting}
        return {**super().record(), **settings}

    # Results of an earlier run

    @functools.cached_property
    def contrast(self) -> int | None:
        """The number of the class that the explained one is compared with."""
        given = self.spec.contrast
        return resolve_class_name(given, self.loaded.class_names, "contrast") if isinstance(given, str) else given

    @functools.cached_property
    def setting(self) -> dict[str, Any]:
        """All that shapes a result except the image; results of one folder share it."""
        loaded, spec = self.loaded, self.spec
        return {
            "format": FORMAT,
            "model": {
                "architecture": loaded.architecture,
                **({} if loaded.label == loaded.architecture else {"label": loaded.label}),
                "weights": loaded.digest,
                "structure": hashlib.sha256(str(loaded.module).encode()).hexdigest()[:32],
                "output": spec.model_output,
            },
            "preprocessing": {**plain(loaded.preprocessing.record()), "exif": spec.exif},
            "class_names": plain(self.class_names),
            "method": plain(self.method.record()),
            "references": self.references.digests if self.method.uses_references else None,
            "target": self.target,
            **({} if self.contrast is None else {"contrast": self.contrast}),
            "score": spec.score,
            **({"boxes": self.boxes} if self.found else {}),
            **({"probe": True} if spec.probe else {}),
            "seed": spec.seed,
            "dtype": "float32",
        }

    def _check(self) -> None:
        """Compare with the results in the folder; with ``overwrite``, name those that will not be replaced."""
        if self.spec.preset is not None and self.spec.preset.endswith(".json"):
            configured_method(self.spec, self.loaded.architecture)
        summary = self.folder.summary()
        self._resumes = summary is not None and not summary.get("complete", False)
        earlier = {} if summary is None else summary.get("setting", {})
        differences = [] if summary is None else changes(earlier, self.setting)
        if summary is None or not differences or not self.folder.has_results():
            return
        if not self._overwrite:
            text = describe_changes(differences) if earlier else f"format: {summary.get('format', 1)}, now {FORMAT}"
            message = f"{str(self._out)!r} holds results of other settings ({text})"
            hint = "name another folder, or pass overwrite=True to replace them"
            raise InputError(message, argument="out", hint=hint)
        current = {ref.id for ref in self.refs}
        entries = [*summary.get("inputs", ()), *summary.get("earlier", ())]
        stored = [entry["id"] for entry in entries if "error" not in entry]
        left = [name for name in stored if name not in current]
        if left:
            names = ", ".join([*left[:5], *(["..."] if len(left) > 5 else [])])
            warn_caller(f"{len(left)} results of other settings stay in {str(self._out)!r}: {names}")

    def _find_earlier(self) -> None:
        """Find the results of these settings in the folder that are of other inputs: the overviews list them, too."""
        current = {self.folder.result_path(ref.id) for ref in self.refs}
        records = self.folder.records(without=current).items()
        same = ((path, known) for path, known in records if not changes(known.get("setting", {}), self.setting))
        self._earlier = [Explanation(path, known, reused=True) for path, known in same]

    def _stored_or_prepared(self, ref: ImageRef) -> Prepared | Failure:
        stored = self.folder.read(ref.id)
        if stored is not None and self._is_current(stored, ref):
            result = Explanation(self.folder.result_path(ref.id), stored, reused=True)
            x = result.load()["input"]
            self._check_model(result, ref, x)
            self.done += 1
            return Prepared(ref, stored["sha256"], x, result)
        return self.prepare(ref)

    def _is_current(self, stored: Mapping[str, Any], ref: ImageRef) -> bool:
        """Whether a stored result is of this image and these settings, with its pictures where they are asked for."""
        if changes(stored["setting"], self.setting):
            return False
        known, top = stored["classes"], stored["options"].get("top", 1)
        if self.spec.figures and not (
            {"overlay.png", PAGE} <= stored["files"].keys() and self._classes(known) == self._classes(known, top)
        ):
            return False
        if isinstance(ref.origin, int):
            return (stored["id"], stored["source"], stored["sha256"]) == (ref.id, ref.source, None)
        sha256 = file_digest(ref.origin)
        return sha256 is not None and (stored["id"], stored["sha256"]) == (ref.id, sha256)

    def _check_model(self, result: Explanation, ref: ImageRef, x: Tensor) -> None:
        """Compare the model's answer with the first reused result: a digest of weights does not see the code.

        Raises:
            InputError: If they differ by more than rounding.
        """
        if self._model_checked:
            return
        top, same_device = result.record["top"], result.record["device"] == str(self.device)
        arguments = ForwardArguments.of(1, None, self.arguments([Prepared(ref, None, x)]))
        now = self.classifier.logits(x[None].to(self.device), arguments)[0].cpu().double().softmax(-1)
        # beside a 1 the tolerance is that of a probability, however small the largest one is
        answers = ([entry["probability"] for entry in top], now[[entry["class"] for entry in top]].tolist())
        before, after = ({ref.source: torch.tensor([*answer, 1.0], dtype=torch.float64)} for answer in answers)
        if apart := Answers(before).differing(after, same_device=same_device):
            message = f"its probabilities of {ref.source!r} differ by {apart[1]:.2g} from those in {str(self._out)!r}"
            hint = "its code or its libraries changed; name another folder for the new results"
            raise InputError(message, argument="model", hint=hint)
        self._model_checked = True

    # Computation

    def _explain(self, batch: Sequence[Prepared | Failure], progress: Progress | None) -> list[Explanation | Failure]:
        """Results of a batch in its order; images of one size are computed together, and written at once.

        Where a run ended within them, all are computed again, so that the maps do not differ by rounding from those of
        a run that went on; those that are stored stay."""
        computed: dict[str, Explanation | Failure] = {}
        for group in by_shape(batch):
            stored = {item.ref.id: item.stored for item in group if item.stored is not None}
            if len(stored) < len(group):
                ended = self._resumes and all(one.record["cost"]["images"] == len(group) for one in stored.values())
                items = group if ended else [item for item in group if item.stored is None]
                results = self._explain_group(items, progress)
                computed |= {item.ref.id: result for item, result in zip(items, results, strict=True)}
            computed |= stored
        return [computed[item.ref.id] if isinstance(item, Prepared) else item for item in batch]

    def _one_by_one(
        self, group: Sequence[Prepared], why: str | InputError, progress: Progress | None
    ) -> list[Explanation | Failure]:
        """Explain each image of a group that failed alone; one that was alone has failed."""
        if len(group) == 1:
            return [Failure.of(group[0].ref, why)]
        return [result for one in group for result in self._explain_group([one], progress)]

    def _explain_group(self, group: Sequence[Prepared], progress: Progress | None) -> list[Explanation | Failure]:
        start = time.perf_counter()
        answer = self.logits(group)
        if isinstance(answer, str):
            return self._one_by_one(group, answer, progress)
        x, logits = answer
        best = torch.nan_to_num(logits).argmax(1)
        if self.found:  # "no object" may be more probable
            best = torch.tensor([self.found[item.ref.id].label for item in group])
        first = best if isinstance(self.target, str) else torch.full_like(best, self.target)  # the word is "predicted"
        if self.contrast in first.tolist():
            why = f"class {self.contrast} is the class to explain itself: name another contrast"
            return self._one_by_one(group, why, progress)
        target, context = self._targets(logits, first[:, None]), None
        if self.spec.figures:
            context = self.context([item.ref.id for item in group], x, logits)
            if self.found:
                context = with_boxes(context, [self.found[item.ref.id] for item in group])
        try:
            result = attribute(
                self.classifier,
                x,
                method=self.method,
                target=target,
                contrast=self.contrast,
                seed=self.spec.seed,
                probe=self.spec.probe,
                telemetry=POINTS if self.spec.figures else False,
                bad_images="mark",
                progress=progress,
                space=self.references.space(x),
                ids=[item.ref.id for item in group],
                forward_kwargs=self.arguments(group),
            )
        except InputError as error:
            if error.argument != "space.references":
                raise
            return self._one_by_one(group, error, progress)
        except Exception as error:  # whatever a model raises on a path
            if isinstance(error, FringeError) or is_transient(error):
                raise
            why = f"the model fails near an input of shape {tuple(x.shape[1:])}: {model_error(error)}"
            return self._one_by_one(group, why, progress)
        if self.found:
            result = followed(result, cast(Detector, self.loaded.module), self.arguments(group)["place"])
        result = dataclasses.replace(result, values=result.values.cpu(), context=context)
        seconds = time.perf_counter() - start
        return [self._write(item, logits[row], result, row, seconds) for row, item in enumerate(group)]

    def _targets(self, logits: Tensor, first: Tensor) -> Target:
        """The class to explain; of several, the ``first`` (B, 1) and the most probable others of each image (B, K)."""
        count = self._classes(logits.shape[1])
        taken = first if self.contrast is None else torch.cat((first, torch.full_like(first, self.contrast)), 1)
        if count == 1 or not 0 <= int(taken.min()) <= int(taken.max()) < logits.shape[1]:
            return self.target
        others = torch.nan_to_num(logits).scatter(1, taken, -torch.inf).topk(count - 1, 1).indices
        return torch.cat((first, others), 1)

    def _classes(self, known: int, top: int | None = None) -> int:
        """How many of the model's classes the page shows: several only where their maps come from one path."""
        return min(top or self.spec.top, known - (self.contrast is not None)) if self.spec.figures and self._many else 1

    @property
    def _many(self) -> bool:
        """Whether one path gives the maps of several classes, each as if it were alone."""
        return self.method.many_targets and not self.method.path_of_targets

    def _write(
        self, item: Prepared, logits: Tensor, several: Attribution, row: int, seconds: float
    ) -> Explanation | Failure:
        if item.stored is not None:
            return item.stored
        result = several if several.target.dim() == 1 else several.of_class(0)
        if result.verdict[row] in ("nan_input", "nan_logits"):
            return Failure.of(item.ref, result.advice[row])
        steps, images, box = result.diagnostics.get("steps"), len(result.target), self.found.get(item.ref.id)
        record = {
            **self.image_entry(item.ref, logits, result.target[row]),
            **({} if self.contrast is None else {"contrast": self.class_entry(self.contrast)}),
            **({} if box is None else {"box": plain(box.sides), "box_on_input": plain(box.on_input)}),
            "verdict": result.verdict[row],
            "advice": result.advice[row],
            **{name: plain(given[row]) for name in _SCORES if (given := getattr(result, name)) is not None},
            "steps": None if steps is None else int(steps[row]),
            "seconds": round(seconds / images, 3),
            "sha256": item.sha256,
            "classes": logits.numel(),
            "top": self.top_classes(logits),
            "diagnostics": {name: plain(values[row]) for name, values in result.diagnostics.items()},
            "cost": {"images": images, "seconds": round(seconds, 3), "passes": dataclasses.asdict(result.passes)},
            **self.record(),
        }

        def fill(folder: Path) -> None:
            tensors = {"values": result.values[row].contiguous(), "input": item.x.contiguous()}
            focus = result.focus_weights(row)
            tensors |= {} if focus is None else {"region": torch.from_numpy(focus)[None]}
            (folder / MAP).write_bytes(save(tensors))  # the errors of save_file have no number
            if self.spec.figures:
                from fringe.explanations._pictures import draw_pictures, write_pages

                draw_pictures(folder, result.select([row]), record)
                write_pages(folder, several, row, record, self._links(item.ref.id))

        try:
            stored = self.folder.write(item.ref.id, record, fill)
        except InputError as error:
            return Failure.of(item.ref, error)
        except OSError as error:
            reason = disk_error(error, self._out)
            if isinstance(reason, StoreFull):  # there is no room for the next results, either
                raise reason from error
            return Failure.of(item.ref, f"cannot write {error.filename!r} ({error.strerror})")
        self.done += 1  # here, not where the batch is given to the caller: an interrupt may come before
        return Explanation(self.folder.result_path(item.ref.id), stored, reused=False)

    def _links(self, name: str) -> list[Box]:
        """The boxes of a photograph, with their pages."""
        if name not in self.found:
            return []
        from fringe.explanations._pictures import class_label
        from fringe.page import Box

        same = {k: one for k, one in self.found.items() if one.photograph == self.found[name].photograph}
        return [
            Box(
                index=one.label,
                label=class_label(self.class_entry(one.label)),
                probability=one.score,
                sides=tuple(one.on_input.tolist()),
                link=f"../{quote(k)}/{PAGE}",
                here=k == name,
            )
            for k, one in same.items()
        ]

    # The files of the run

    def _write_summary(self, *, complete: bool) -> None:
        explained = self.explained
        drawn = complete and self.spec.figures and explained
        counts = {
            "inputs": len(self.refs) + len(self.missing),
            "explained": len(explained),
            "reused": sum(result.reused for result in explained),
            "failed": len(self.failures),
            "verdicts": dict(Counter(result.record["verdict"] for result in explained)),
        }
        self.write_document(
            {
                "complete": complete,
                "counts": counts,
                "contact_sheet": CONTACT if drawn and CONTACT not in self.folder.unwritten else None,
                "index": INDEX if drawn and INDEX not in self.folder.unwritten else None,
                "inputs": self._entries,
                "earlier": [_entry(result) for result in self._earlier],
            }
        )

    def _write_overviews(self) -> None:
        """Write the contact sheet and the index of all results of these settings, those of this run first."""
        if not self.explained or not self.spec.figures:
            return
        from fringe.explanations._pictures import SHEET, contact_cell, index_entry
        from fringe.page import render_index
        from fringe.plots import contact_sheet, png_of

        earlier = [result for result in self._earlier if PAGE in result.record["files"]]  # else there is no link
        explained, recipe = [*self.explained, *earlier], self.loaded.preprocessing
        title = f"{self.loaded.label} · {method_title(preset_label(self.method.record()))}"
        cells = [contact_cell(result.load(), result.record, recipe) for result in explained[:SHEET]]
        more = f", first {SHEET} of {len(explained)}" if len(explained) > SHEET else ""
        self.folder.attempt(CONTACT, png_of(contact_sheet(cells, title=f"{title}{more}")))
        entries = [index_entry(result, recipe) for result in (*self.explained, *self.failures, *earlier)]
        self.folder.attempt(INDEX, render_index(title, entries))
