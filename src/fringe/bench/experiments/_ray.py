"""The executor for a Ray cluster: actors on any of its machines, each with the model loaded."""

import logging
import math
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fringe.bench.experiments._executors import POLL_INTERVAL, Ended, Executor, Stored, Tasks, Tries, perform_or_exit
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
    ``order`` is its last one."""

    actor: Any
    answer: Any
    order: tuple[Task, Stored] | None = None
    since: float = math.inf
    ready: bool = False


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

    def perform(self, runner: TaskRunner, tasks: Tasks, most: int) -> Ended:
        if not most:
            return
        ray, slots = _import_ray(), list[_Slot]()
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

            def hire() -> None:
                actor = make.remote(job, max(1, int(self.cpus)))
                slots.append(_Slot(actor, actor.begin.remote()))

            for _ in range(min(most, self.workers or room)):
                hire()
            again, tries, lonely_since, order = deque[tuple[Task, Stored]](), Tries(), time.monotonic(), None
            while True:
                free = [slot for slot in slots if slot.ready and slot.answer is None]
                while free and (order := again.popleft() if again else next(tasks, ())):
                    slot = max(free, key=partial(_fit, order[0]))
                    free.remove(slot)
                    slot.order, slot.since = order, time.monotonic()
                    slot.answer = slot.actor.perform.remote(*order)
                if order == () and not again and not any(slot.ready and slot.answer is not None for slot in slots):
                    return
                for slot, result in self._results(ray, slots):
                    slot.answer = None
                    if not isinstance(result, str):
                        if slot.ready and slot.order is not None:
                            tries.reset()
                            yield slot.order[0], result
                        slot.ready = True
                        continue
                    slots.remove(slot)
                    hire()
                    if not slot.ready or slot.order is None:
                        tries.blame_start(result)
                    elif (reason := tries.again(slot.order[0], result)) is None:
                        again.append(slot.order)
                    else:
                        yield slot.order[0], reason
                now = time.monotonic()
                if any(slot.ready for slot in slots):
                    lonely_since = now
                elif now - lonely_since > PATIENCE:
                    lonely_since = math.inf  # once
                    _log.warning("the Ray cluster has no room for a worker of %s; waiting for a machine", needs)
        finally:
            for slot in slots:
                ray.kill(slot.actor)
            if is_ours:
                ray.shutdown()

    def _results(self, ray: Any, slots: Sequence[_Slot]) -> list[tuple[_Slot, Any]]:
        """Wait for actors: the answers of some, and why others have none: they ended, or are late."""
        pending, results = [slot.answer for slot in slots if slot.answer is not None], list[tuple[_Slot, Any]]()
        if not pending:  # all tasks are claimed by another run
            time.sleep(POLL_INTERVAL)
        ended = ray.wait(pending, num_returns=1, timeout=POLL_INTERVAL)[0] if pending else []
        ended += ray.wait(pending, num_returns=len(pending), timeout=0)[0] if ended else []
        for slot in (slot for slot in slots if slot.answer is not None):
            if slot.answer in ended:
                try:
                    results.append((slot, ray.get(slot.answer)))
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, FringeError) else error) from None
                except ray.exceptions.RayActorError as error:
                    results.append((slot, "ended its process" if slot.ready else f"ended ({_cause(error)})"))
            elif self.timeout and slot.ready and time.monotonic() - slot.since > self.timeout:
                ray.kill(slot.actor)
                results.append((slot, f"took longer than {self.timeout:g} s"))
        return results

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


def _fit(task: Task, slot: _Slot) -> tuple[bool, bool]:
    """How well an actor fits a task: it had one of the same images, or of the same model. Larger is better."""
    last = None if slot.order is None else slot.order[0]
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
