"""What holds for every test: the same examples in every run, unless somebody looks for new ones.

`LIGHTRAIL_EXAMPLES=new` draws fresh Hypothesis examples; a failing one prints the line that repeats it.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("new", deadline=None, print_blob=True)
settings.load_profile("new" if os.environ.get("LIGHTRAIL_EXAMPLES") == "new" else "same")
