"""A process that stands for a gateway; see stand_in.py."""

import sys

from lightrail.telemetry.process import main
from tests.support.roles.stand_in import serve

sys.exit(main("gateway", serve))
