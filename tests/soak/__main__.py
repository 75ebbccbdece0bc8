"""Long checks of what the documentation promises: ``python -m tests.soak CHECK --help`` says what each does."""

import sys

from tests.soak import measurements, page, searches, studies
from tests.soak.harness import main

CHECKS = (
    *(studies.kill, studies.outage, studies.netns),
    *(searches.hostile, searches.real, measurements.warm, page.page),
)

if __name__ == "__main__":
    sys.exit(main(CHECKS))
