"""The executor for a Ray cluster: actors on any of its machines, each with the model loaded."""

import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

from fringe.bench.experiments._executors import (
    POLL_INTERVAL,
    READY,
    Pool,
    PoolExecutor,
    Stored,
    Worker,
    perform_or_exit,
)
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._tasks import Task
from fringe.errors import FringeError, InputError, first_line, install_hint

#: Seconds without any actor after which a warning says what the cluster has no room for.
PATIENCE = 30.0
#: Seconds that the first machine of a cluster may take to answer.
ANSWER = 10.0

_log = logging.getLogger(__name__)


class RayExecutor(PoolExecutor):
    """Perform tasks on a Ray cluster.

    A task is sent to an actor that has its model and images, if one is free. An actor that dies or is late is replaced
    when the cluster has room. The images must be reachable from every machine; results travel to the machine that runs
    the plan, and it writes.

    Args:
        address: Address of the cluster, such as ``auto`` or ``ray://host:10001``; None for the cluster in
            ``RAY_ADDRESS``, or else for a new cluster on this machine that ends with the run.
        workers: Number of actors; None for as many as fit into the cluster when the run begins.
        timeout: Seconds that a task may take; None for no limit.
        cpus: CPU cores of an actor.
        gpus: GPUs of an actor, a fraction if several share one; None for 1 if the tasks run on ``cuda``, else 0.

    Raises:
        InputError: For a number that makes no sense, and when a run starts without a cluster at the address.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        timeout: float | None = None,
        cpus: float = 1.0,
        gpus: float | None = None,
    ):
        for name, value in (("workers", workers), ("cpus", cpus), ("gpus", gpus)):
            if value is not None and (value < 0 or (value == 0 and name != "gpus")):
                raise InputError(f"got {value}, expected a positive number", argument=name)
        self.address, self.workers, self.timeout, self.cpus, self.gpus = address, workers, timeout, cpus, gpus

    @contextlib.contextmanager
    def _pool(self, runner: TaskRunner, most: int) -> Generator[Pool]:
        ray = _import_ray()
        if is_ours := not ray.is_initialized():
            self._connect(ray)
        try:
            device_gpus = 1.0 if runner.device.type == "cuda" else 0.0
            gpus = device_gpus if self.gpus is None else self.gpus
            needs, total = {"CPU": self.cpus, **({"GPU": gpus} if gpus else {})}, ray.cluster_resources()
            make = ray.remote(num_cpus=self.cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(_Actor)
            job = ray.put(runner)  # the images of the plan travel once to a machine, not once to an actor
            # at least one, since a machine may come later
            room = max(1, min(int(total.get(name, 0.0) / amount) for name, amount in needs.items()))
            lonely_since = time.monotonic()

            def wait_for(slots: Sequence[_Slot]) -> None:
                nonlocal lonely_since
                ray.wait([slot.reference for slot in slots if slot.busy], num_returns=1, timeout=POLL_INTERVAL)
                now = time.monotonic()
                if any(slot.order or not slot.busy for slot in slots):
                    lonely_since = now
                elif now - lonely_since > PATIENCE:
                    lonely_since = math.inf  # once
                    _log.warning("the Ray cluster has no room for a worker of %s; waiting for a machine", needs)

            yield (
                min(most, self.workers or room),
                lambda: _Slot(ray, make.remote(job, max(1, int(self.cpus)))),
                wait_for,
            )
        finally:
            if is_ours:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = self.address is None and "RAY_ADDRESS" not in os.environ
        _require_answer(self.address)
        # A cluster of this machine alone is reachable from this machine alone. Without "local", Ray would look for any
        # cluster on this machine, and as 127.0.0.1 it could not use it: its actors would end before they begin.
        alone = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        more = alone if local else {"address": self.address}
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **more)
            for number, handler in handlers.items():  # Ray's own would end this process amid a commit
                if threading.current_thread() is threading.main_thread():
                    signal.signal(number, handler)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = first_line(error)
            raise InputError(f"cannot connect to Ray ({first})", argument="executor") from error


class _Slot(Worker):
    """An actor; ``reference`` is to what it does now."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor, self.reference = ray, actor, actor.begin.remote()

    def send(self, task: Task, stored: Stored) -> None:
        self.reference = self._actor.perform.remote(task, stored)

    def answer(self) -> Any:
        if not self._ray.wait([self.reference], timeout=0)[0]:
            return None
        try:
            return self._ray.get(self.reference)
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, FringeError) else error) from None
        except self._ray.exceptions.RayActorError as error:
            return f"ended ({_cause(error)})" if self.order is None else "ended its process"

    def close(self) -> None:
        self._ray.kill(self._actor)


class _Actor:
    """One process of the cluster: a model, a device, and the images of one task at a time."""

    def __init__(self, runner: TaskRunner, threads: int):
        import torch

        torch.set_num_threads(threads)
        self._runner = runner

    def begin(self) -> str:
        """Answer when the process is ready."""
        return READY

    def perform(self, task: Task, stored: Stored) -> TaskResult:
        return perform_or_exit(self._runner, task, stored)


def _require_answer(address: str | None) -> None:
    """Raise InputError if nothing listens at ``host:port``: Ray would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address!r} ({error})", argument="executor") from error


def _cause(error: Exception) -> str:
    """What Ray says of an actor's end, without its identifiers: those are indented."""
    return " ".join(line for line in str(error).splitlines() if line and not line.startswith(("\t", " ")))


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise InputError(
            f"needs {error.name}, which is not installed", argument="executor", hint=install_hint("ray")
        ) from error
    return ray
