#!/usr/bin/env bash
set -euo pipefail
agent-r1 train "$(dirname "$0")/../../recipes/hotpotqa" algorithm=reinforce_pp run.name=hotpotqa_reinforce_pp "$@"
