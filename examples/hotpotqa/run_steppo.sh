#!/usr/bin/env bash
set -euo pipefail
agent-r1 train recipes/hotpotqa algorithm=steppo run.name=hotpotqa_steppo "$@"
