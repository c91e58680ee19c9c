"""Start the observer with `python -m eunoe_observer`."""

import sys

from .cli import main

sys.exit(main())
