"""The layout of the memory that native code and the runtime share."""

from tilewright.runtime import abi


def test_no_two_fields_of_a_workers_line_share_bytes():
    words = {abi.WORKER_TICKET, abi.WORKER_ASLEEP, abi.WORKER_CLAIM, abi.WORKER_APART}
    starts = [v for k, v in vars(abi).items() if k.startswith("WORKER_")]
    starts.append((abi.POOL_RANGES - abi.POOL_FIRST_WORKER) % abi.POOL_WORKER_SIZE)
    used = [at + n for at in starts for n in range(4 if at in words else 8)]
    assert len(set(used)) == len(used) and max(used) < abi.POOL_WORKER_SIZE
