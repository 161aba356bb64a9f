"""Reports of benchmark runs: tables with every n, LaTeX, CSV, Markdown, and one page that needs nothing beside it."""

from fringe.report.beside import BesidePart as BesidePart
from fringe.report.beside import BesidePicture as BesidePicture
from fringe.report.beside import BesideRow as BesideRow
from fringe.report.beside import beside_page as beside_page
from fringe.report.picks import EACH as EACH
from fringe.report.replan import recorded_methods as recorded_methods
from fringe.report.tables import Table as Table
from fringe.report.tables import build_table as build_table
from fringe.report.write import Written as Written
from fringe.report.write import write_report as write_report
