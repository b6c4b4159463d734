"""``python -m lightrail.bench``."""

import sys

from lightrail.bench.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
