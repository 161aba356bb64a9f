"""The executor for a Ray cluster: actors on any of its machines, each with the model loaded."""

import logging
import math
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from fringe.bench.experiments._executors import Ended, Executor, Stored, perform_or_exit
from fringe.bench.experiments._runner import TaskResult, TaskRunner
from fringe.bench.experiments._tasks import Task
from fringe.errors import FringeError, InputError, first_line, install_hint

#: Seconds without any actor after which a warning says what the cluster has no room for.
PATIENCE = 30.0
#: Seconds that the first machine of a cluster may take to answer.
ANSWER = 10.0

_log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """An actor; ``answer`` refers to what it does now: its start at first, then a task; None if it waits for one. The
    ``task`` is its last one."""

    actor: Any
    answer: Any
    task: Task | None = None
    since: float = math.inf
    ready: bool = False
    late: bool = False


class RayExecutor(Executor):
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
        self._slots, self._connected, self._lonely_since = list[_Slot](), False, math.inf

    @property
    def capacity(self) -> int:
        """Number of actors that have begun."""
        return sum(slot.ready for slot in self._slots)

    def start(self, runner: TaskRunner, tasks: int) -> None:
        if not tasks:
            return
        ray = _import_ray()
        if not ray.is_initialized():
            self._connect(ray)
        device_gpus = 1.0 if runner.device.type == "cuda" else 0.0
        gpus = device_gpus if self.gpus is None else self.gpus
        self._needs = {"CPU": self.cpus, **({"GPU": gpus} if gpus else {})}
        self._make = ray.remote(num_cpus=self.cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(_Actor)
        self._runner = ray.put(runner)  # the images of the plan travel once to a machine, not once to an actor
        self._lonely_since, total = time.monotonic(), ray.cluster_resources()
        # at least one, since a machine may come later
        room = max(1, min(int(total.get(name, 0.0) / amount) for name, amount in self._needs.items()))
        for _ in range(min(tasks, self.workers or room)):
            self._hire()

    def schedule(self, task: Task, stored: Stored) -> None:
        free = [slot for slot in self._slots if slot.ready and slot.answer is None]
        slot = max(free, key=lambda one: _fit(one.task, task))
        slot.task, slot.since = task, time.monotonic()
        slot.answer = slot.actor.perform.remote(task, stored)

    def completed(self, timeout: float) -> list[Ended]:
        ray, results = _import_ray(), list[Ended]()
        pending = [slot.answer for slot in self._slots if slot.answer is not None]
        ended = ray.wait(pending, num_returns=1, timeout=timeout)[0] if pending else []
        ended += ray.wait(pending, num_returns=len(pending), timeout=0)[0] if ended else []
        for slot in [slot for slot in self._slots if slot.answer is not None and slot.answer in ended]:
            try:
                answer = ray.get(slot.answer)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, FringeError) else error) from None
            except ray.exceptions.RayActorError as error:
                results.append(self._replace(slot, error))
                continue
            if slot.ready:
                results.append((slot.task, answer))
            slot.answer, slot.ready = None, True
        now = time.monotonic()
        for slot in self._slots:
            at_work = slot.ready and slot.answer is not None and not slot.late
            if self.timeout and at_work and now - slot.since > self.timeout:
                slot.late = True
                ray.kill(slot.actor)
        if self.capacity:
            self._lonely_since = now
        elif now - self._lonely_since > PATIENCE:
            self._lonely_since = math.inf  # once
            _log.warning("the Ray cluster has no room for a worker of %s; waiting for a machine", self._needs)
        return results

    def stop(self) -> None:
        slots, connected, self._slots, self._connected = self._slots, self._connected, list[_Slot](), False
        if slots or connected:
            ray = _import_ray()
            for slot in slots:
                ray.kill(slot.actor)
            if connected:
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
        self._connected = True

    def _hire(self) -> None:
        actor = self._make.remote(self._runner, max(1, int(self.cpus)))
        self._slots.append(_Slot(actor, actor.begin.remote()))

    def _replace(self, slot: _Slot, error: Exception) -> Ended:
        """Ask for another actor in place of one that ended, and say why it did."""
        self._slots.remove(slot)
        self._hire()
        reason = f"took longer than {self.timeout:g} s" if slot.late else "ended its process"
        if not slot.ready:
            return None, f"ended ({_cause(error)})"
        _log.warning("a worker ended: %s", reason)
        return slot.task, reason


class _Actor:
    """One process of the cluster: a model, a device, and the images of one task at a time."""

    def __init__(self, runner: TaskRunner, threads: int):
        import torch

        torch.set_num_threads(threads)
        self._runner = runner

    def begin(self) -> None:
        """Answer when the process is ready."""

    def perform(self, task: Task, stored: Stored) -> TaskResult:
        return perform_or_exit(self._runner, task, stored)


def _fit(last: Task | None, task: Task) -> tuple[bool, bool]:
    """How well an actor with this last task fits: the same images, the same model. Larger is better."""
    same = last is not None and last.model == task.model
    return same and last is not None and last.images == task.images, same


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
