"""Reports of benchmark runs: tables with every n, LaTeX, CSV, Markdown, and one page that needs nothing beside it."""

from fringe.bench.report._build import describe_status
from fringe.bench.report._maps import examples_of
from fringe.bench.report._table import ModelTable, build_table, chance_of, cost_of_maps
from fringe.bench.report._write import ReportFiles, ReportSpec, report_folder, write_report

__all__ = ["ReportSpec", "write_report"]
