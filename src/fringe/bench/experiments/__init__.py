"""Experiments: methods compared under metrics on many images, stored, resumed and summarised."""

from fringe._urls import url_of
from fringe.bench.experiments._estimate import MethodCost, RunEstimate, describe_excess, estimate_run, estimate_tasks
from fringe.bench.experiments._examples import sample_examples
from fringe.bench.experiments._executors import Executor, ProcessExecutor, SerialExecutor
from fringe.bench.experiments._jobs import RunLog, TaskReport
from fringe.bench.experiments._manifest import (
    Manifest,
    Resolved,
    resolve,
    versions,
)
from fringe.bench.experiments._options import RunOptions, make_executor
from fringe.bench.experiments._plan import Plan, build_plan, configured, planned_work, planned_work_of
from fringe.bench.experiments._plan_models import ModelSource, PlanModel
from fringe.bench.experiments._probe import ProbeOptions
from fringe.bench.experiments._ray import RayExecutor
from fringe.bench.experiments._records import ScoreRecord, StoredMap
from fringe.bench.experiments._results import Results, read_results, results_from, results_of
from fringe.bench.experiments._run import (
    Interrupted,
    Progress,
    RunResult,
    Session,
    describe_run,
    has_scores,
    open_session,
    run_experiment,
    run_in_memory,
    run_plan,
    run_record,
)
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._spec import ExperimentSpec
from fringe.bench.experiments._status import TRIAL, describe_failures, read_status
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import (
    KeySet,
    Task,
    committed_keys,
    crashes,
    manifests,
    mixed,
    pending_tasks,
    required_keys,
    versions_of,
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
