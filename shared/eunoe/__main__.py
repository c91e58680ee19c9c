"""Run Eunoe's commands with `python -m eunoe`."""

import sys

from .cli import main

sys.exit(main())
