"""The parts of the engine for CUDA: graphs and Triton kernels."""
