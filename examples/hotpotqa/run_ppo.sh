#!/usr/bin/env bash
set -euo pipefail
agent-r1 train recipes/hotpotqa algorithm=ppo run.name=hotpotqa_ppo "$@"
