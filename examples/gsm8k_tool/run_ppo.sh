#!/usr/bin/env bash
set -euo pipefail
agent-r1 train "$(dirname "$0")/../../recipes/gsm8k_tool" algorithm=ppo run.name=gsm8k_tool_ppo "$@"
