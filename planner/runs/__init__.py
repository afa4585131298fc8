"""Run tables: measured training runs as CSV rows, and each row as something that can be evaluated as stated."""

from __future__ import annotations

from planner.runs.row import Run
from planner.runs.spec import Measured, Skip, Spec, all_specs, measured, spec, specs
from planner.runs.table import Table, TableError, read

__all__ = ["Measured", "Run", "Skip", "Spec", "Table", "TableError", "all_specs", "measured", "read", "spec", "specs"]
