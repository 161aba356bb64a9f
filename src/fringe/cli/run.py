"""One run of ``fringe explain``, from what was typed to an exit code."""

from typing import Any, cast

import torch

from fringe.attribution import preset_names
from fringe.classifier import Classifier
from fringe.cli.explaining import Explainer
from fringe.cli.folder import ResultFolder
from fringe.cli.gather import chunks, find
from fringe.cli.ledger import Ledger
from fringe.cli.options import (
    MethodOptions,
    ModelOptions,
    RunOptions,
    read_batch_size,
    read_class_names,
    read_target,
)
from fringe.cli.problems import Exit, complain, remark
from fringe.cli.progress import Watch
from fringe.cli.record import Run
from fringe.cli.settings import configure
from fringe.models import LoadedModel, Preprocessing, load_model


def run_explain(how: MethodOptions, what: ModelOptions, options: RunOptions) -> Exit:
    """Explain every input and write the results. Raises FringeError on options that cannot be meant."""
    method, target = configure(how), read_target(options.target)
    batch_size = read_batch_size(options.batch_size)
    refs, missing = find(options.inputs)
    if not refs:
        for failure in missing:
            complain(failure.reason)
        return Exit.NOTHING_DONE
    device = _device(what.device)
    loaded = _load(what, device)
    if how.preset is None and method.name == "fringe" and loaded.architecture in preset_names():
        name = loaded.architecture
        remark(f"hint: the paper tuned a setting for this network; use it with --preset {name}")
    classifier = Classifier(loaded.module, score=cast(Any, options.score.value), batch_size=batch_size)
    run = Run(loaded, method, options, torch.device(device))
    ledger = Ledger(ResultFolder(options.out, overwrite=options.overwrite), run, total=len(refs) + len(missing))
    try:
        with Watch(len(refs), quiet=options.json) as watch:
            explainer = Explainer(run, classifier, target, watch)
            for chunk in chunks(refs, loaded.preprocessing, options.exif):
                ledger.add(explainer.explain(chunk))
    except KeyboardInterrupt:
        remark(f"interrupted: {ledger.explained} finished inputs are in {options.out}")
        return Exit.INTERRUPTED
    ledger.add(missing)
    return ledger.close()


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _load(options: ModelOptions, device: str) -> LoadedModel:
    recipe = None if options.preprocessing is None else Preprocessing.parse(options.preprocessing)
    return load_model(
        options.model,
        trust_code=options.trust_code,
        preprocessing=recipe,
        class_names=read_class_names(options.classes),
        device=device,
    )
