"""Contracts that anybody's method or metric can be tried against."""

from fringe.testing.method import ATTRIBUTOR_CHECKS as ATTRIBUTOR_CHECKS
from fringe.testing.method import check_attributor as check_attributor
from fringe.testing.metric import METRIC_CHECKS as METRIC_CHECKS
from fringe.testing.metric import check_metric as check_metric
from fringe.testing.result import CheckResult as CheckResult
from fringe.testing.result import ContractError as ContractError
