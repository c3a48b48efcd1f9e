"""`python -m agent_r1.cli` is `agent-r1`."""

from agent_r1.cli.app import main

if __name__ == "__main__":
    main()
