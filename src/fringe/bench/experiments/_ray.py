"""The executor for a Ray cluster: actors on any of its machines, each with the model loaded."""

import logging
import math
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fringe.bench.experiments._executors import Executor, Job, Order, TaskFailure, perform_or_exit
from fringe.bench.experiments._runner import TaskResult
from fringe.errors import FringeError, InputError, TransientError, first_line, install_hint

#: Most tasks that wait at one actor: enough that it never waits for the driver, and few that another could take.
MAX_BLOCK = 8
#: Seconds without any actor after which a warning says what the cluster has no room for.
PATIENCE = 30.0
#: Seconds that the first machine of a cluster may take to answer.
ANSWER = 10.0
#: Seconds in which the cluster notices that a machine is lost: it looks every few seconds, and several times.
NOTICE = 30.0
#: Seconds without an answer of Ray after which the run ends: more than Ray takes to see that machines are lost.
SILENCE = 120.0

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass
class _Slot:
    """An actor and the tasks that were sent to it; it performs them in their order."""

    actor: Any
    starting: Any  # the reference of its first answer, until it has come
    node: str | None = None
    queue: deque[tuple[Order, Any]] = field(default_factory=deque[tuple[Order, Any]])
    since: float = 0.0
    late: bool = False

    @property
    def pending(self) -> Any:
        """The reference of its next answer; None if it has nothing to do."""
        return self.starting or (self.queue[0][1] if self.queue else None)

    def score(self, order: Order) -> tuple[bool, bool, int]:
        """How well the task fits: the same images, the same model, a short queue. Larger is better."""
        last, task = self.queue[-1][0].task if self.queue else None, order.task
        same = last is not None and last.model == task.model
        return same and last is not None and last.images == task.images, same, -len(self.queue)


class RayExecutor(Executor):
    """Perform tasks on a Ray cluster.

    A task is sent to an actor that has its model and images, if the queues allow it. An actor that dies or is late
    is replaced when the cluster has room. The loss of a machine does not count as a failure of its task.
    The images must be reachable from every machine; results travel to the machine that runs the plan, and it writes.

    Args:
        address: Address of the cluster, such as ``auto`` or ``ray://host:10001``; None for the cluster in
            ``RAY_ADDRESS``, or else for a new cluster on this machine that ends with the run.
        workers: Number of actors; None for as many as fit into the cluster when the run begins.
        timeout: Seconds that a task may take; None for no limit.
        cpus: CPU cores of an actor.
        gpus: GPUs of an actor, a fraction if several share one; None for 1 if the job runs on ``cuda``, else 0.

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
        self._slots, self._remaining, self._connected, self._lonely_since = list[_Slot](), 0, False, math.inf

    @property
    def capacity(self) -> int:
        """Tasks that may be performed or wait at an actor: the queues shorten towards the end of the run."""
        ready = sum(slot.starting is None for slot in self._slots)
        return ready * self._block

    @property
    def _block(self) -> int:
        return max(1, min(MAX_BLOCK, self._remaining // (2 * max(1, len(self._slots)))))

    def start(self, job: Job, tasks: int) -> None:
        if tasks:
            self._start(_import_ray(), job, tasks)

    def _start(self, ray: Any, job: Job, tasks: int) -> None:
        if not ray.is_initialized():
            self._connect(ray)
        device_gpus = 1.0 if job.device.startswith("cuda") else 0.0
        gpus = device_gpus if self.gpus is None else self.gpus
        self._needs = {"CPU": self.cpus, **({"GPU": gpus} if gpus else {})}
        self._make = ray.remote(num_cpus=self.cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)(_Actor)
        self._job = ray.put(job)  # the images of the plan travel once to a machine, not once to an actor
        self._remaining, self._lonely_since = tasks, time.monotonic()
        for _ in range(min(tasks, self.workers or self._room(ray))):
            self._hire()

    def schedule(self, order: Order) -> None:
        free = [slot for slot in self._slots if slot.starting is None and len(slot.queue) < self._block]
        ready = free or [slot for slot in self._slots if slot.starting is None]
        slot = max(ready, key=lambda slot: slot.score(order))
        if not slot.queue:
            slot.since = time.monotonic()
        slot.queue.append((order, slot.actor.perform.remote(order)))

    def completed(self, timeout: float) -> list[tuple[Order | None, TaskResult | TaskFailure]]:
        return _answered(lambda: self._completed(_import_ray(), timeout), timeout + SILENCE)

    def _completed(self, ray: Any, timeout: float) -> list[tuple[Order | None, TaskResult | TaskFailure]]:
        # where a process of a cluster that this one started was killed, Ray would wait, and then end this process
        node = getattr(ray._private.worker, "_global_node", None)
        if node is not None and (dead := [kind for kind, _ in node.dead_processes()]):
            raise TransientError(f"a part of the Ray cluster was killed ({', '.join(dead)})")
        pending = [slot.pending for slot in self._slots if slot.pending is not None]
        if pending:
            ray.wait(pending, num_returns=1, timeout=timeout)
        results = list[tuple[Order | None, TaskResult | TaskFailure]]()
        for slot in list(self._slots):
            results += self._ended(ray, slot)
            if self.timeout and slot.queue and not slot.late and time.monotonic() - slot.since > self.timeout:
                slot.late = True
                ray.kill(slot.actor)
        self._warn_if_lonely(ray)
        self._remaining -= sum(isinstance(result, TaskResult) for _, result in results)
        return results

    def stop(self) -> None:
        if not self._slots and not self._connected:
            return
        slots, connected, self._slots, self._connected = self._slots, self._connected, list[_Slot](), False

        def end() -> None:
            ray = _import_ray()
            for slot in slots:
                ray.kill(slot.actor)
            if connected:
                ray.shutdown()

        try:
            _answered(end, ANSWER)
        except TransientError as error:  # the run has ended, and its results are stored
            _log.warning("%s", error)

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

    def _room(self, ray: Any) -> int:
        """Actors that the cluster has room for; at least one, since a machine may come later."""
        total = ray.cluster_resources()
        return max(1, min(int(total.get(name, 0.0) / amount) for name, amount in self._needs.items()))

    def _hire(self) -> None:
        actor = self._make.remote(self._job, max(1, int(self.cpus)))
        self._slots.append(_Slot(actor, actor.node.remote()))

    def _ended(self, ray: Any, slot: _Slot) -> list[tuple[Order | None, TaskResult | TaskFailure]]:
        """What ended at an actor."""
        results = list[tuple[Order | None, TaskResult | TaskFailure]]()
        while (pending := slot.pending) is not None:
            if not ray.wait([pending], timeout=0)[0]:
                break
            try:
                answer = ray.get(pending)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, FringeError) else error) from None
            except ray.exceptions.RayActorError as error:
                return results + self._replace(ray, slot, error)
            if slot.starting is not None:
                slot.starting, slot.node = None, answer
                continue
            results.append((slot.queue.popleft()[0], answer))
            slot.since = time.monotonic()
        return results

    def _replace(self, ray: Any, slot: _Slot, error: Exception) -> list[tuple[Order | None, TaskResult | TaskFailure]]:
        """Ask for another actor; the first task of the queue is to blame, unless the machine is lost."""
        self._slots.remove(slot)
        self._hire()
        lost = _machine_lost(ray, slot.node, error)
        reason = f"took longer than {self.timeout:g} s" if slot.late else "ended its process"
        if slot.starting is not None:
            return [] if lost else [(None, TaskFailure(f"ended ({_cause(error)})", "start"))]
        _log.warning("a worker ended: %s", "its machine is lost" if lost else reason)
        first, rest = slot.queue[0][0] if slot.queue else None, list(slot.queue)[1:]
        blamed = [] if first is None else [(first, TaskFailure(reason, "machine" if lost else "task"))]
        return [*blamed, *((task, TaskFailure(reason, "machine")) for task, _ in rest)]

    def _warn_if_lonely(self, ray: Any) -> None:
        now = time.monotonic()
        if any(slot.starting is None for slot in self._slots):
            self._lonely_since = now
        elif now - self._lonely_since > PATIENCE:
            self._lonely_since = math.inf  # once
            _log.warning("the Ray cluster has no room for a worker of %s; waiting for a machine", self._needs)


class _Actor:
    """One process of the cluster: a model, a device, and the images of one task at a time."""

    def __init__(self, job: Job, threads: int):
        import torch

        torch.set_num_threads(threads)
        self._runner = job.worker()

    def node(self) -> str:
        """The machine that it is on."""
        return _import_ray().get_runtime_context().get_node_id()

    def perform(self, order: Order) -> TaskResult:
        return perform_or_exit(self._runner, order)


def _answered(call: Callable[[], Answer], seconds: float) -> Answer:
    """Call into Ray. Raises TransientError if the cluster does not answer: where a part of it was killed, Ray may wait
    for ever."""
    result = list[Answer]()
    errors = list[BaseException]()

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not result:
        raise TransientError(f"the Ray cluster has not answered for {seconds:.0f} s; is a part of it killed?")
    return result[0]


def _require_answer(address: str | None) -> None:
    """Raise InputError if nothing listens at ``host:port``: Ray would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address!r} ({error})", argument="executor") from error


def _machine_lost(ray: Any, node: str | None, error: Exception) -> bool:
    """Whether an actor ended with its machine. The cluster notices some seconds later."""
    if getattr(error, "preempted", False) or "node has died" in str(error) or "node was terminated" in str(error):
        return True
    if node is None:
        return False
    until = time.monotonic() + NOTICE
    while alive := any(entry["Alive"] and entry["NodeID"] == node for entry in ray.nodes()):
        # A machine that answers is there: only one that is silent may be lost and not yet known to be.
        if time.monotonic() > until or _answers(ray, node):
            break
        time.sleep(0.1)
    return not alive


def _answers(ray: Any, node: str) -> bool:
    """Whether a machine performs a trifle in a moment."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    ping = ray.remote(num_cpus=0, max_retries=0)(_nothing).options(scheduling_strategy=strategy).remote()
    try:
        return bool(ray.wait([ping], timeout=1.0)[0]) and ray.get(ping) is None
    except ray.exceptions.RayError:
        return False


def _nothing() -> None:
    return None


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
