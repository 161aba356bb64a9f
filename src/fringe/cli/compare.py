"""``fringe compare``: its options. What it does is in ``compare_run``, imported when it is called."""

from typing import Annotated

import typer

from fringe.cli import flags
from fringe.cli.options import CompareOptions, Exif, ModelOptions, ModelOutput, RunOptions, Score, choose_model
from fringe.cli.problems import MODEL_OUTPUT, reported


def compare(
    inputs: flags.Inputs,
    out: flags.Out,
    model: flags.Model = None,
    methods: Annotated[
        str,
        typer.Option(metavar="NAMES", help="With commas: NAME, NAME:PRESET or LABEL=NAME; see 'fringe methods'."),
    ] = "fringe,ig",
    metrics: Annotated[
        str, typer.Option(metavar="NAMES", help="With commas: NAME or NAME:PRESET; see 'fringe metrics'.")
    ] = "mas_insertion,mas_deletion,insertion,deletion,sparseness",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LABEL.KEY=VALUE", help="A setting of a method or metric; may be repeated."),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Score maps that know nothing of the model, too.")
    ] = True,
    references: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Images for the methods that average over the data; else the inputs."),
    ] = None,
    target: flags.Target = "predicted",
    score: flags.ScoreKind = Score.LOGIT,
    rows: Annotated[int, typer.Option(min=1, help="Images in the picture.")] = 8,
    pool: Annotated[
        str, typer.Option(metavar="N", help="Pixels that the picture averages maps over: 'auto' or a number.")
    ] = "auto",
    preprocessing: flags.Preprocessing = None,
    classes: flags.Classes = None,
    trust_code: flags.TrustCode = False,
    model_output: flags.Output = ModelOutput.AUTO,
    batch_size: flags.BatchSize = "auto",
    device: flags.Device = "auto",
    seed: flags.Seed = 0,
    exif: flags.ExifRule = Exif.TRANSPOSE,
    overwrite: flags.Overwrite = False,
    yes: flags.Yes = False,
    as_json: flags.AsJson = False,
) -> None:
    """Explain the same images with several methods and score them: a picture, a table of means, and every score.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs or methods failed, 130 interrupted.
    """
    with reported(MODEL_OUTPUT):
        from fringe.cli.compare_run import run_compare

        code = run_compare(
            CompareOptions(methods, metrics, tuple(settings or ()), controls, rows, pool),
            ModelOptions(choose_model(model, inputs), preprocessing, classes, trust_code, device, model_output),
            RunOptions(
                inputs=tuple(inputs),
                out=out,
                target=target,
                score=score,
                references=references,
                batch_size=batch_size,
                seed=seed,
                exif=exif,
                overwrite=overwrite,
                yes=yes,
                json=as_json,
            ),
        )
    raise typer.Exit(code)
