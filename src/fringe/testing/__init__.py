"""Checks that an attribution method or a metric, of this or another package, keeps its contract."""

from fringe.testing._attributors import ATTRIBUTOR_CHECKS, check_attributor
from fringe.testing._checks import CheckError, CheckResult
from fringe.testing._metrics import METRIC_CHECKS, check_metric

__all__ = ["ATTRIBUTOR_CHECKS", "METRIC_CHECKS", "CheckError", "CheckResult", "check_attributor", "check_metric"]
