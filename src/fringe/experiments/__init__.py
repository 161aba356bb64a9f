"""Experiments: methods compared under metrics on many images, stored, resumed and summarised."""

from fringe._urls import url_of
from fringe.experiments._arms import Arm, ModelSource
from fringe.experiments._estimate import MethodCost, RunEstimate, describe_excess, estimate_run, estimate_tasks
from fringe.experiments._executors import Executor, ProcessExecutor, SerialExecutor
from fringe.experiments._jobs import RunLog, TaskReport
from fringe.experiments._manifest import (
    FirstLogits,
    Manifest,
    Resolved,
    changes,
    describe_changes,
    digest,
    resolve,
    versions,
)
from fringe.experiments._options import RunOptions, make_executor
from fringe.experiments._places import disk_error
from fringe.experiments._plan import Plan, build_plan, configured, planned_work, planned_work_of
from fringe.experiments._probe import ProbeOptions
from fringe.experiments._ray import RayExecutor
from fringe.experiments._records import ScoreRecord, StoredMap
from fringe.experiments._results import Results, read_results, results_from, results_of
from fringe.experiments._run import (
    Interrupted,
    Progress,
    RunResult,
    Session,
    describe_run,
    has_scores,
    open_session,
    run_experiment,
    run_plan,
    run_record,
)
from fringe.experiments._runner import TaskRunner
from fringe.experiments._spec import ExperimentSpec
from fringe.experiments._status import TRIAL, describe_failures, read_status
from fringe.experiments._store import Store, StoreFull
from fringe.experiments._tasks import (
    KeySet,
    Task,
    committed_keys,
    crashes,
    manifests,
    mixed,
    pending_tasks,
    required_keys,
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
