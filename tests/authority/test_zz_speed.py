import time, pytest
from tests.authority.builders import request, at
from workloads import authority
from workloads.authority.verification import verify
pytestmark = pytest.mark.django_db
def test_s():
    for b in range(10):
        authority.admit_many([request(f"{b} {n}", input={"n": n}) for n in range(500)], now=at(0))
    for c in range(5):
        for cl in authority.claim_next(worker_id="w", capabilities=(), lease_ms=60000, limit=500, start=True, now=at(1)):
            authority.complete(cl.fence, result_id=cl.workload_id, output=1, now=at(2))
    t = time.perf_counter(); n = len(list(verify(now=at(10)))); print("SECONDS for 5000", time.perf_counter() - t, n)
