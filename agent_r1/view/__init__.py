"""`agent-r1 view`: a local web page on run folders. This package finds runs, indexes their trajectories and serves them as JSON;
docs/view.md has the addresses. No torch."""
