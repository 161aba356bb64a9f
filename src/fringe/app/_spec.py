"""The options of the app: one model for keyword arguments and flags."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fringe.settings import Options

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class AppSpec(Options):
    """Options of :func:`fringe.app.launch`, both as keyword arguments and as flags.

    Raises:
        InputError: If an option is unknown or has an invalid value.
    """

    expected: ClassVar[Mapping[str, str]] = {"time_limit": "more than 0 seconds"}

    model: tuple[str, ...] = Field(
        (), description="SPEC or NAME=SPEC: a model that people may choose; may be repeated. [default: embedded:digits]"
    )
    samples: tuple[str, ...] | None = Field(None, description="Images or folders that people may pick from.")
    host: str = Field("127.0.0.1", description="Address to listen at.")
    allow_remote: bool = Field(False, description="Allow a host that other machines reach.")
    frame_ancestors: tuple[str, ...] = Field(
        (), description="Origin of a web site, such as https://example.org, that may show the app in a frame."
    )
    port: int = Field(7860, description="Port; 0 takes a free one.")
    trust_code: bool = Field(False, description="Allow the models' authors to run code.")
    preprocessing: str | None = Field(None, description="'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5.")
    classes: Path | None = Field(None, description="Class names, one per line.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    max_pixels: int = Field(20_000_000, ge=1, description="Largest number of pixels of an image.")
    time_limit: float = Field(600.0, gt=0, description="Seconds that one computation may take.")
    queue: int = Field(8, ge=1, description="Computations that may wait.")
