"""Speed: generation, updates, tools, search. Each file but `peer_vllm.py` is a script with `--help`."""
