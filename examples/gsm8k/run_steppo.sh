#!/usr/bin/env bash
set -euo pipefail
agent-r1 train "$(dirname "$0")/../../recipes/gsm8k" algorithm=steppo run.name=gsm8k_steppo "$@"
