#!/usr/bin/env bash
set -euo pipefail
agent-r1 train recipes/hotpotqa algorithm=rloo run.name=hotpotqa_rloo "$@"
