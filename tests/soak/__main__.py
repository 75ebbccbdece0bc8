"""Long checks of what the documentation promises: ``python -m tests.soak CHECK --help`` says what each does."""

import sys

from tests.soak import answers, clients, fuzzers, measurements, searches, studies
from tests.soak.harness import main

CHECKS = (
    *(answers.answers, answers.standing),
    *(clients.page_attack, clients.page),
    *(fuzzers.fuzz_edit, fuzzers.odd_files, fuzzers.fuzz_record, fuzzers.imports),
    *(measurements.idle, measurements.drift, measurements.one_device, measurements.warm),
    *(searches.hostile, searches.json_under_signals, searches.styles, searches.looking, searches.real),
    *(studies.kill, studies.outage, studies.netns, studies.slurm),
)

if __name__ == "__main__":
    sys.exit(main(CHECKS))
