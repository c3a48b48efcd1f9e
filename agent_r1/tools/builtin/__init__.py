"""The tools that come with Agent-R1: calculator, Python, search, and those of MCP servers."""
