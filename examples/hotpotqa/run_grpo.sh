#!/usr/bin/env bash
set -euo pipefail
agent-r1 train recipes/hotpotqa algorithm=grpo run.name=hotpotqa_grpo "$@"
