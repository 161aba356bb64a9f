"""Options that several commands share, each with its one help text."""

from pathlib import Path
from typing import Annotated

import typer

from fringe.cli.options import Exif, ModelOutput, Score

Inputs = Annotated[
    list[str], typer.Argument(metavar="INPUT", help="Images, folders, or embedded:digits[:INDEX|:START:STOP].")
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results.", metavar="DIR")]
Model = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="Which model; see 'fringe models'. embedded:digits needs none."),
]
Output = Annotated[
    ModelOutput, typer.Option("--model-output", help="What the model returns: 'auto' refuses probabilities.")
]
Preprocessing = Annotated[
    str | None, typer.Option(metavar="TEXT", help="'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5.")
]
Classes = Annotated[Path | None, typer.Option(metavar="FILE", help="Class names, one a line.")]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Let the model's author run code here.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, ...")]
Target = Annotated[str, typer.Option(help="Class to explain: 'predicted' or its number.")]
ScoreKind = Annotated[Score, typer.Option("--score", help="What of that class is explained.")]
BatchSize = Annotated[str, typer.Option(help="Images at a time: 'auto' or a number.")]
Seed = Annotated[int, typer.Option(help="Keys all randomness.")]
ExifRule = Annotated[Exif, typer.Option("--exif", help="Turn photos as their camera was held, or not.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write into a folder with other files.")]
Yes = Annotated[bool, typer.Option("--yes", help="Start also where the settings mean absurdly many passes.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, no bars.")]
