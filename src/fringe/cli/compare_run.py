"""One run of ``fringe compare``, from what was typed to an exit code."""

import importlib

from fringe.cli.comparing import Comparer
from fringe.cli.consent import require_consent, work_of
from fringe.cli.contest import read_contest
from fringe.cli.folder import ResultFolder
from fringe.cli.gather import chunks, find
from fringe.cli.loading import open_classifier, open_model
from fringe.cli.options import CompareOptions, ModelOptions, RunOptions, read_batch_size, read_pool, read_target
from fringe.cli.problems import Exit, complain, remark
from fringe.cli.progress import Watch
from fringe.cli.record import Run
from fringe.cli.scorebook import Scorebook
from fringe.cli.spaces import open_spaces


def run_compare(who: CompareOptions, what: ModelOptions, options: RunOptions) -> Exit:
    """Compare on every input and write the results. Raises FringeError on options that cannot be meant."""
    contest, target, pool = read_contest(who), read_target(options.target), read_pool(who.pool)
    batch_size = read_batch_size(options.batch_size)
    importlib.import_module("fringe.cli.grid")  # what it needs is missed now, not when everything is computed
    refs, missing = find(options.inputs)
    if not refs:
        for failure in missing:
            complain(failure.reason)
        return Exit.NOTHING_DONE
    require_consent(work_of(contest.methods, contest.metrics, len(refs)), yes=options.yes, quiet=options.json)
    loaded, device = open_model(what)
    spaces = open_spaces(options.references, refs if len(refs) > 1 else [], loaded, device, options.exif)
    about = {"command": "compare", "target": target, "references": spaces.record()}
    run = Run(loaded, options, device, what.output, what="comparison", about=about)
    folder = ResultFolder(options.out, overwrite=options.overwrite, command="compare")
    book = Scorebook(folder, run, [ref.id for ref in refs], contest, rows=who.rows, pool=pool)
    book.fail(missing)
    try:
        with Watch(len(refs), quiet=options.json) as watch:
            classifier = open_classifier(loaded, options.score, what.output, batch_size)
            comparer = Comparer(run, contest, classifier, target, spaces, who.controls, watch)
            for chunk in chunks(refs, loaded.preprocessing, options.exif):
                found, failures = comparer.compare(chunk, keep_maps=book.wants_maps)
                book.fail(failures)
                book.add(found)
    except KeyboardInterrupt:
        remark(f"interrupted: {book.compared} compared inputs are in {options.out}")
        return Exit.INTERRUPTED
    return book.close()
