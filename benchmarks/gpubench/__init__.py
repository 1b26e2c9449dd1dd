"""The parts of ``benchmarks/gpu_checks.py``."""
