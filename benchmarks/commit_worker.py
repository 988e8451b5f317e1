"""The timing process of `benchmarks.commits`: it serves the sources that its task names,
or a peer."""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    # Before the package is imported for the first time.
    sys.path.insert(0, task["options"].pop("sources"))
    from tilewright.cli import worker

    if task["engine"] in ("before", "after"):
        task["engine"] = "tilewright"
    sys.exit(worker.main(json.dumps(task)))
