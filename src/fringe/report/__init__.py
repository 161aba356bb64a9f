"""Reports of benchmark runs: tables with every n, LaTeX, CSV, Markdown, and one page that needs nothing beside it."""

from fringe.report._examples import EXAMPLES as EXAMPLES
from fringe.report._failures import cost_of_maps as cost_of_maps
from fringe.report._failures import describe_status as describe_status
from fringe.report._maps import recorded_methods as recorded_methods
from fringe.report._render import Chapter as Chapter
from fringe.report._render import ComparisonRow as ComparisonRow
from fringe.report._render import ComparisonTable as ComparisonTable
from fringe.report._render import Image as Image
from fringe.report._render import Report as Report
from fringe.report._render import Section as Section
from fringe.report._render import SimpleTable as SimpleTable
from fringe.report._render import comparison_page as comparison_page
from fringe.report._render import html_page as html_page
from fringe.report._render import markdown_report as markdown_report
from fringe.report._table import Table as Table
from fringe.report._table import build_table as build_table
from fringe.report._write import ReportFiles as ReportFiles
from fringe.report._write import report_folder as report_folder
from fringe.report._write import write_report as write_report
from fringe.report._write import write_reports as write_reports

__all__ = ["write_report"]
