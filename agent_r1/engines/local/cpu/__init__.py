"""The parts of the engine for CPU."""
