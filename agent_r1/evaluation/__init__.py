"""Evaluating a policy, numbers about rollouts, and a monitor that says when learning goes wrong."""
