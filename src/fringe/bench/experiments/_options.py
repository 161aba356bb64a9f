"""How experiments are run, in Python and on the command line."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from fringe._names import Reference
from fringe.bench.experiments._executors import Executor, ProcessExecutor, SerialExecutor
from fringe.bench.experiments._ray import RayExecutor
from fringe.errors import InputError
from fringe.models import resolve_device
from fringe.settings import Options


class RunOptions(Options):
    """How a plan is run; none of it changes a number. The descriptions of the fields are the help of the flags.

    In Python, ``executor`` may also be an executor. It is None for this process, or for processes if a number of
    workers is given.
    """

    expected: ClassVar[Mapping[str, str]] = {"timeout": "a number of seconds of at least 1"}

    device: str = Field("cpu", description="auto, cpu, cuda, cuda:1, ...")
    batch_size: Literal["auto"] | PositiveInt = Field("auto", description="Images per pass: 'auto' or a number.")
    executor: Any = Field(
        None, description="serial, processes, or ray[:ADDRESS]. Default: serial, or processes if workers are given."
    )
    workers: NonNegativeInt = Field(0, description="Worker processes. Default: one for each core or free GPU.")
    timeout: float | None = Field(None, ge=1, description="Longest time of a task; needs worker processes.")
    save_maps: bool = Field(False, description="Store every map: a metric added later needs no new ones.")
    amend: bool = Field(False, description="Let other settings replace those of the folder.")
    retry: bool = Field(False, description="Compute failed scores again.")
    renew: bool = Field(False, description="Recall the results of a model whose logits changed.")

    def resolve(self) -> Self:
        """Return the options with an executor in place of its name, and a device in place of "auto". Raises InputError
        for a device that does not exist, and for workers or a timeout of an executor without processes."""
        if self.executor is not None and not isinstance(self.executor, str):
            return self.model_copy(update={"device": resolve_device(self.device)})
        name = self.executor or ("processes" if self.workers else "serial")
        if name == "serial" and self.workers:
            raise InputError("a serial run has no workers", argument="workers", hint="leave out one of the two")
        if self.timeout is not None and name == "serial":
            message = "a task that takes too long is ended with its process"
            raise InputError(message, argument="timeout", hint="add workers=1, or more")
        # the machines of a cluster have their own devices
        device = self.device if name.startswith("ray") and self.device != "auto" else resolve_device(self.device)
        alone = name == "processes" and device.startswith("cuda")  # each process would fill the same GPU
        executor = make_executor(name, self.workers or (1 if alone else None), self.timeout)
        return self.model_copy(update={"executor": executor, "device": device})


def make_executor(name: str, workers: int | None = None, timeout: float | None = None) -> Executor:
    """Make the executor ``serial``, ``processes``, ``ray`` or ``ray:ADDRESS``. Without ``workers``, there is one for
    each core, or as many as a cluster has room for. Raises InputError for another name."""
    if name == "serial":
        return SerialExecutor()
    if name == "processes":
        return ProcessExecutor(workers or os.cpu_count() or 1, timeout)
    reference = Reference.parse(name)
    if reference.head == "ray":
        return RayExecutor(reference.rest or None, workers=workers, timeout=timeout)
    raise InputError(f"got {name!r}, expected serial, processes, ray or ray:ADDRESS", argument="executor")
