"""A short run of the fuzzer; `make fuzz` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_commands_calls_and_damaged_files_end_with_our_own_errors_only() -> None:
    """The fuzzer runs in its own process, without the shape checks of the tests, which would refuse odd types first."""
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    counts = ["--commands", "20", "--calls", "120", "--artefacts", "15", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *counts],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
