"""The timing process of `tilewright.cli.worker`, extended by the benchmarks' peers."""

from __future__ import annotations

import sys

from benchmarks.peers import PEERS
from tilewright.cli import worker
from tilewright.cli.engines import ENGINES

if __name__ == "__main__":
    ENGINES.update(PEERS)
    sys.exit(worker.main(sys.argv[1]))
