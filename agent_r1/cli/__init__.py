"""The command line, `agent-r1`. No command imports torch before it runs."""

try:
    from agent_r1.cli.app import app, main
except KeyboardInterrupt:  # Ctrl-C while modules are imported, which takes a moment
    raise SystemExit(130) from None

__all__ = ["app", "main"]
