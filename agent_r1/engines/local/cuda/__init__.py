"""The engine on CUDA: graphs and Triton kernels."""
