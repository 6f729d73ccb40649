"""``python -m rnnorm`` is the ``rnnorm`` command."""

import sys

if __name__ == "__main__":
    from rnnorm.experiments.commands.cli import console

    sys.exit(console())
