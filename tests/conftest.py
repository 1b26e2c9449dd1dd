"""One profile for all property tests: the same examples in every run, no deadlines (machines differ)."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes at once: one thread each, before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

settings.register_profile(
    "spanfold",
    derandomize=True,
    deadline=None,
    max_examples=120,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("spanfold")
