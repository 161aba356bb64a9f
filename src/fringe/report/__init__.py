"""Reports of benchmark runs: tables with every n, LaTeX, CSV, Markdown, and one page that needs nothing beside it."""

from fringe.report.tables import Table as Table
from fringe.report.tables import build_table as build_table
from fringe.report.write import Written as Written
from fringe.report.write import write_report as write_report
