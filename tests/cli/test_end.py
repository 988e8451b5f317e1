"""How a command's process ends."""

import subprocess
import sys


def test_the_end_of_a_command_examines_no_objects():
    """Registered first, so called last: the command's objects are frozen by then."""
    program = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0, len(gc.get_objects())))\n"
        "sys.argv = ['tilewright', '--version']\n"
        "from tilewright.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    frozen, left = ended.stdout.split("\n")[-2].split()
    assert frozen == "True"
    assert int(left) < 1000


def test_importing_the_command_line_changes_no_end():
    """Programs other than the command keep the collections at their end."""
    program = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(gc.get_freeze_count()))\n"
        "import tilewright.cli, tilewright.cli.app, tilewright.driver.compile\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["0"]
