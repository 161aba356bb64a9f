"""Experiments: methods compared under metrics on many images, stored, resumed and summarised."""

from fringe._urls import url_of as url_of
from fringe.experiments._arms import Arm as Arm
from fringe.experiments._arms import ModelSource as ModelSource
from fringe.experiments._compare import compare as compare
from fringe.experiments._comparison import Comparison as Comparison
from fringe.experiments._comparison import grid_row as grid_row
from fringe.experiments._comparison import metric_labels as metric_labels
from fringe.experiments._comparison import summarise as summarise
from fringe.experiments._comparison import tidy as tidy
from fringe.experiments._estimate import MethodCost as MethodCost
from fringe.experiments._estimate import RunEstimate as RunEstimate
from fringe.experiments._estimate import describe_excess as describe_excess
from fringe.experiments._estimate import estimate_run as estimate_run
from fringe.experiments._estimate import estimate_tasks as estimate_tasks
from fringe.experiments._evaluator import CONTROLS as CONTROLS
from fringe.experiments._evaluator import Candidate as Candidate
from fringe.experiments._evaluator import Evaluator as Evaluator
from fringe.experiments._evaluator import MethodResult as MethodResult
from fringe.experiments._evaluator import make_maps as make_maps
from fringe.experiments._executors import Executor as Executor
from fringe.experiments._executors import ProcessExecutor as ProcessExecutor
from fringe.experiments._executors import SerialExecutor as SerialExecutor
from fringe.experiments._formats import ScoreRecord as ScoreRecord
from fringe.experiments._formats import StoredMap as StoredMap
from fringe.experiments._formats import disk_error as disk_error
from fringe.experiments._images import ImageEntry as ImageEntry
from fringe.experiments._images import choose_references as choose_references
from fringe.experiments._images import content_digest as content_digest
from fringe.experiments._images import content_of as content_of
from fringe.experiments._images import prepare as prepare
from fringe.experiments._jobs import RunLog as RunLog
from fringe.experiments._jobs import TaskReport as TaskReport
from fringe.experiments._manifest import FirstLogits as FirstLogits
from fringe.experiments._manifest import Manifest as Manifest
from fringe.experiments._manifest import Resolved as Resolved
from fringe.experiments._manifest import changes as changes
from fringe.experiments._manifest import describe_changes as describe_changes
from fringe.experiments._manifest import digest as digest
from fringe.experiments._manifest import resolve as resolve
from fringe.experiments._options import RunOptions as RunOptions
from fringe.experiments._options import make_executor as make_executor
from fringe.experiments._plan import Plan as Plan
from fringe.experiments._plan import build_plan as build_plan
from fringe.experiments._plan import configured as configured
from fringe.experiments._plan import default_model as default_model
from fringe.experiments._plan import planned_work as planned_work
from fringe.experiments._plan import planned_work_of as planned_work_of
from fringe.experiments._plan import with_settings as with_settings
from fringe.experiments._probe import ProbeOptions as ProbeOptions
from fringe.experiments._ray import RayExecutor as RayExecutor
from fringe.experiments._reliability import MARGIN as MARGIN
from fringe.experiments._reliability import ReliabilityBin as ReliabilityBin
from fringe.experiments._resampling import LEVEL as LEVEL
from fringe.experiments._resampling import RESAMPLES as RESAMPLES
from fringe.experiments._results import Results as Results
from fringe.experiments._results import read_results as read_results
from fringe.experiments._results import results_from as results_from
from fringe.experiments._results import results_of as results_of
from fringe.experiments._run import Interrupted as Interrupted
from fringe.experiments._run import Progress as Progress
from fringe.experiments._run import RunResult as RunResult
from fringe.experiments._run import Session as Session
from fringe.experiments._run import describe_run as describe_run
from fringe.experiments._run import has_scores as has_scores
from fringe.experiments._run import open_session as open_session
from fringe.experiments._run import run_experiment as run_experiment
from fringe.experiments._run import run_plan as run_plan
from fringe.experiments._run import run_record as run_record
from fringe.experiments._runner import TaskRunner as TaskRunner
from fringe.experiments._spec import PAPER_METHODS as PAPER_METHODS
from fringe.experiments._spec import ExperimentSpec as ExperimentSpec
from fringe.experiments._statistics import WEIGHTS as WEIGHTS
from fringe.experiments._statistics import Difference as Difference
from fringe.experiments._statistics import Estimate as Estimate
from fringe.experiments._statistics import dominance as dominance
from fringe.experiments._statistics import estimate as estimate
from fringe.experiments._statistics import estimate_all as estimate_all
from fringe.experiments._statistics import holm as holm
from fringe.experiments._statistics import near_ties as near_ties
from fringe.experiments._statistics import paired as paired
from fringe.experiments._statistics import paired_all as paired_all
from fringe.experiments._statistics import pick as pick
from fringe.experiments._statistics import significance_stars as significance_stars
from fringe.experiments._status import TRIAL as TRIAL
from fringe.experiments._status import describe_failures as describe_failures
from fringe.experiments._status import read_status as read_status
from fringe.experiments._store import Store as Store
from fringe.experiments._store import StoreFull as StoreFull
from fringe.experiments._tasks import KeySet as KeySet
from fringe.experiments._tasks import Task as Task
from fringe.experiments._tasks import committed_keys as committed_keys
from fringe.experiments._tasks import crashes as crashes
from fringe.experiments._tasks import manifests as manifests
from fringe.experiments._tasks import mixed as mixed
from fringe.experiments._tasks import pending_tasks as pending_tasks
from fringe.experiments._tasks import required_keys as required_keys
from fringe.experiments._validity import LEAST as LEAST
from fringe.experiments._validity import SHARES as SHARES
from fringe.experiments._validity import Validity as Validity
from fringe.experiments._validity import degraded_scores as degraded_scores
from fringe.experiments._validity import judge_metrics as judge_metrics
from fringe.experiments._validity import validate_metrics as validate_metrics
from fringe.experiments._verdict_judgement import judge_verdicts as judge_verdicts
from fringe.experiments._verdict_record import ReliabilityFit as ReliabilityFit
from fringe.experiments._verdict_record import VerdictReliability as VerdictReliability
from fringe.experiments._verdict_record import read_reliability as read_reliability
from fringe.experiments._verdict_record import reliability_for as reliability_for

__all__ = [  # noqa: RUF022 - by topic
    "ExperimentSpec",
    "build_plan",
    "run_experiment",
    "estimate_run",
    "RunEstimate",
    "compare",
    "Comparison",
    "Results",
    "read_results",
    "Executor",
    "ProcessExecutor",
    "RayExecutor",
    "Estimate",
    "estimate",
    "Difference",
    "paired",
    "holm",
    "validate_metrics",
    "judge_verdicts",
    "read_reliability",
]
