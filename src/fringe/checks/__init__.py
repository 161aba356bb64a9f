"""Contracts that anybody's method or metric can be tried against."""

from fringe.checks.method import ATTRIBUTOR_CHECKS as ATTRIBUTOR_CHECKS
from fringe.checks.method import check_attributor as check_attributor
from fringe.checks.metric import METRIC_CHECKS as METRIC_CHECKS
from fringe.checks.metric import check_metric as check_metric
from fringe.checks.result import CheckResult as CheckResult
from fringe.checks.result import ContractError as ContractError
