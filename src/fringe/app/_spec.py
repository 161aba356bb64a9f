"""The options of the app: one model for keyword arguments and flags."""

from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Gt

from fringe.settings import Doc, Options

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class AppSpec(Options):
    """Options of :func:`fringe.app.launch`, both as keyword arguments and as flags.

    Raises:
        InputError: If an option is unknown or has an invalid value.
    """

    model: Annotated[
        tuple[str, ...],
        Doc("SPEC or NAME=SPEC: a model that people may choose; may be repeated. [default: embedded:digits]"),
    ] = ()
    samples: Annotated[tuple[str, ...] | None, Doc("Images or folders that people may pick from.")] = None
    host: Annotated[str, Doc("Address to listen at.")] = "127.0.0.1"
    allow_remote: Annotated[bool, Doc("Allow a host that other machines reach.")] = False
    frame_ancestors: Annotated[
        tuple[str, ...], Doc("Origin of a web site, such as https://example.org, that may show the app in a frame.")
    ] = ()
    port: Annotated[int, Doc("Port; 0 takes a free one.")] = 7860
    trust_code: Annotated[bool, Doc("Allow the models' authors to run code.")] = False
    preprocessing: Annotated[str | None, Doc("'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5.")] = None
    classes: Annotated[Path | None, Doc("Class names, one per line.")] = None
    device: Annotated[str, Doc("auto, cpu, cuda, cuda:1, ...")] = "auto"
    max_pixels: Annotated[int, Ge(1), Doc("Largest number of pixels of an image.")] = 20_000_000
    time_limit: Annotated[float, Gt(0), Doc("Seconds that one computation may take.", takes="more than 0 seconds")] = (
        600.0
    )
    queue: Annotated[int, Ge(1), Doc("Computations that may wait.")] = 8
