"""Experiments: methods compared under metrics on many images, stored, resumed and summarised."""

from fringe._files.urls import url_of
from fringe.bench.experiments._estimate import MethodCost, RunEstimate, describe_seconds, estimate_run
from fringe.bench.experiments._executors import Executor, ProcessExecutor, RunLog, SerialExecutor, TaskReport
from fringe.bench.experiments._manifest import (
    Manifest,
    Resolved,
    resolve,
    sample_examples,
    versions,
)
from fringe.bench.experiments._plan import (
    Plan,
    PlanModel,
    build_plan,
    configured,
    planned_work_of,
)
from fringe.bench.experiments._ray import RayExecutor
from fringe.bench.experiments._records import LOGITS, MISSING, OK, STATUSES, StoredMap
from fringe.bench.experiments._results import MethodScores, Results, manifests, read_results
from fringe.bench.experiments._run import (
    TRIAL,
    Interrupted,
    RunOptions,
    RunResult,
    describe_failures,
    describe_run,
    make_executor,
    make_maps,
    open_run,
    read_status,
    run_experiment,
    run_plan,
    run_record,
)
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._spec import ExperimentSpec
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import (
    Task,
    mixed,
    pending_tasks,
)

__all__ = [  # noqa: RUF022 - by topic
    "ExperimentSpec",
    "build_plan",
    "run_experiment",
    "estimate_run",
    "RunEstimate",
    "Results",
    "read_results",
    "Executor",
    "ProcessExecutor",
    "RayExecutor",
]
