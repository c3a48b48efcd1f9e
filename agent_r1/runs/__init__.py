"""What runs came to: curves of their metrics, and tables of those that are finished."""

from agent_r1.runs.plot import DEFAULT_KEYS, draw_curves, save_figure
from agent_r1.runs.read import RunRecord, read_runs
from agent_r1.runs.table import markdown_table, table_rows

__all__ = ["DEFAULT_KEYS", "RunRecord", "draw_curves", "markdown_table", "read_runs", "save_figure", "table_rows"]
