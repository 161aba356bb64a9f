"""One run of ``fringe explain``, from what was typed to an exit code."""

import importlib
from collections.abc import Sequence

from fringe.attribution import preset_names
from fringe.cli.consent import require_consent, work_of
from fringe.cli.explaining import Explainer
from fringe.cli.folder import ResultFolder
from fringe.cli.gather import chunks, find
from fringe.cli.ledger import Ledger
from fringe.cli.loading import open_classifier, open_model
from fringe.cli.options import MethodOptions, ModelOptions, RunOptions, read_batch_size, read_target
from fringe.cli.problems import Exit, complain, remark
from fringe.cli.progress import Watch
from fringe.cli.record import Failed, Run
from fringe.cli.settings import check_preset, configure
from fringe.cli.spaces import open_spaces


def run_explain(how: MethodOptions, what: ModelOptions, options: RunOptions) -> Exit:
    """Explain every input and write the results. Raises FringeError on options that cannot be meant."""
    method, target, batch_size = configure(how), read_target(options.target), read_batch_size(options.batch_size)
    if options.figures:
        importlib.import_module("fringe.cli.pictures")  # what it needs is missed now, not when the first map is drawn
    refs, missing = find(options.inputs)
    if not refs:
        return nothing_found(missing)
    require_consent(work_of({method.name: method}, {}, len(refs)), yes=options.yes, quiet=options.json)
    loaded, device = open_model(what)
    check_preset(how, loaded.architecture)
    if how.preset is None and method.name == "fringe" and loaded.architecture in preset_names():
        name = loaded.architecture
        remark(f"hint: the paper tuned a setting for this network; use it with --preset {name}")
    spaces = open_spaces(options.references, [], loaded, device, options.exif)
    about = {"command": "explain", "settings": method.record(), "references": spaces.record()}
    run = Run(loaded, options, device, what.output, what=method.name, about=about)
    ledger = Ledger(ResultFolder(options.out, overwrite=options.overwrite), run, total=len(refs) + len(missing))
    try:
        with Watch(len(refs), quiet=options.json) as watch:
            classifier = open_classifier(loaded, options.score, what.output, batch_size)
            explainer = Explainer(run, method, classifier, target, spaces, watch)
            for chunk in chunks(refs, loaded.preprocessing, options.exif):
                ledger.add(explainer.explain(chunk))
    except KeyboardInterrupt:
        remark(f"interrupted: {ledger.explained} finished inputs are in {options.out}")
        return Exit.INTERRUPTED
    ledger.add(missing)
    return ledger.close()


def nothing_found(missing: Sequence[Failed]) -> Exit:
    """Say why there is nothing to do."""
    for failure in missing:
        complain(failure.reason)
    return Exit.NOTHING_DONE
