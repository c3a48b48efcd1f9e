#!/usr/bin/env bash
set -euo pipefail
agent-r1 train "$(dirname "$0")/../../recipes/gsm8k_tool" algorithm=reinforce_pp run.name=gsm8k_tool_reinforce_pp "$@"
