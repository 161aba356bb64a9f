"""Reports of benchmark runs: tables with every n, LaTeX, CSV, Markdown, and one page that needs nothing beside it."""

from fringe.bench.report._examples import EXAMPLES
from fringe.bench.report._failures import cost_of_maps, describe_status
from fringe.bench.report._maps import recorded_methods
from fringe.bench.report._render import Image, Report, Section, html_page, markdown_report, versions_chapter
from fringe.bench.report._table import ScoreTable, build_table
from fringe.bench.report._truth import chance_of
from fringe.bench.report._write import ReportFiles, ReportSpec, report_folder, write_report, write_reports

__all__ = ["ReportSpec", "write_report"]
