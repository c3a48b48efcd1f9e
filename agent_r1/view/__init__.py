"""`agent-r1 view`: a local web page on run folders. Runs are found, their trajectories indexed, and both served as
JSON; docs/view.md has the addresses. No torch.

    api = ViewApi(Catalog([Path("runs")]))
    api.runs(); api.trajectories("quickstart", [("tool", "price"), ("sort", "-reward")])
"""

from agent_r1.view.api import NotFoundError, ViewApi
from agent_r1.view.catalog import Catalog, check_folders
from agent_r1.view.index import INDEX_NAME, IndexState, TrajectoryIndex

__all__ = ["INDEX_NAME", "Catalog", "IndexState", "NotFoundError", "TrajectoryIndex", "ViewApi", "check_folders"]
