"""A process that stands for a frontend; see roles.py."""

import sys

from lightrail.telemetry.process import main
from tests.support.roles import serve

sys.exit(main("frontend", serve))
