#!/usr/bin/env bash
set -euo pipefail
agent-r1 train "$(dirname "$0")/../../recipes/hotpotqa" algorithm=grpo run.name=hotpotqa_grpo "$@"
