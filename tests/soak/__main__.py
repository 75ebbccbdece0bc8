"""Long checks of what the documentation promises: ``python -m tests.soak CHECK --help`` says what each does."""

import sys

from tests.soak import answers, clients, fuzzers, measurements, searches, studies
from tests.soak.harness import main

CHECKS = (
    *(*searches.CHECKS, *studies.CHECKS, *fuzzers.CHECKS),
    *(*answers.CHECKS, *clients.CHECKS, *measurements.CHECKS),
)

if __name__ == "__main__":
    sys.exit(main(CHECKS))
