"""Reports of benchmark runs: tables with every n, LaTeX, CSV, Markdown, and one page that needs nothing beside it."""

from fringe.report._examples import EXAMPLES
from fringe.report._failures import cost_of_maps, describe_status
from fringe.report._maps import recorded_methods
from fringe.report._render import (
    Chapter,
    Image,
    Report,
    Section,
    SimpleTable,
    html_page,
    markdown_report,
)
from fringe.report._table import Table, build_table
from fringe.report._write import ReportFiles, report_folder, write_report, write_reports

__all__ = ["write_report"]
