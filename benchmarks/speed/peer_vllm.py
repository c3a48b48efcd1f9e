"""The generation workloads of gpu.py with vLLM, in a process (and, if need be, a Python) of its own.

    python benchmarks/speed/peer_vllm.py JOB.json RESULT.json

gpu.py writes the job and reads the result, which is written after every workload. Imports neither torch nor agent_r1.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone: agent_r1, benchmarks, recipes

from benchmarks.common.prompts import Workload, random_prompts

SAMPLING = {"temperature": 1.0, "ignore_eos": True, "logprobs": 0, "detokenize": False}
"""`logprobs=0`: those of the sampled tokens and no others."""


def measure(llm: Any, workload: Workload, job: dict[str, Any]) -> list[float]:
    """Seconds of each repeat, on prompts no repeat has seen; the first one warms up and is not counted."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    sampling = SamplingParams(max_tokens=workload.new_tokens, **{**SAMPLING, **job["sampling"]})
    seconds = []
    for repeat in range(job["repeats"] + 1):
        prompts = [
            TokensPrompt(prompt_token_ids=list(prompt))
            for prompt in random_prompts(workload, vocabulary=job["vocabulary"], seed=job["seed"] + repeat)
        ]
        started = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - started)
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        if made != workload.num_new_tokens:
            raise RuntimeError(f"{made} tokens were made where {workload.num_new_tokens} were asked for")
        if any(not output.outputs[0].logprobs for output in outputs):
            raise RuntimeError("some outputs have no log-probs")
    return seconds[1:]


def main() -> None:
    """Read the job, measure, write."""
    job_file, result_file = map(Path, sys.argv[1:])
    job = json.loads(job_file.read_text())
    workloads = [Workload(**entry) for entry in job["workloads"]]
    result: dict[str, Any] = {"version": None, "error": None, "seconds": {}, "errors": {}}

    def write() -> None:
        beside = result_file.with_suffix(".partial")
        beside.write_text(json.dumps(result))
        beside.replace(result_file)

    write()
    try:
        import vllm

        result["version"] = vllm.__version__
        options = {
            "dtype": "bfloat16",
            "max_model_len": max(workload.prompt_tokens + workload.new_tokens for workload in workloads),
            "max_num_seqs": max(workload.num_requests for workload in workloads),
            "enable_prefix_caching": True,
        }
        llm = vllm.LLM(model=job["model"], **{**options, **job["engine"]})
    except ImportError as error:
        result["error"] = f"not installed ({error})"
    except Exception as error:  # noqa: BLE001 - whatever it was, the benchmark reports it and continues
        result["error"] = f"{type(error).__name__}: {error}"
    write()
    for workload in [] if result["error"] else workloads:
        try:
            result["seconds"][workload.name] = measure(llm, workload, job)
        except Exception as error:  # noqa: BLE001 - the other workloads continue
            result["errors"][workload.name] = f"{type(error).__name__}: {error}"
        write()
    # All is written. gpu.py ends the processes of the engine, whose own end may take long.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
