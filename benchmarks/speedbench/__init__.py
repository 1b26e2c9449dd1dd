"""The parts of ``benchmarks/speed.py``; plain Python, attrs and cattrs (matplotlib for the plot alone)."""
