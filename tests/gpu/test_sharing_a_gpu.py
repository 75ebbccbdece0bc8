"""Promises about whose kernels ran, where a trial's processes share a GPU with a stranger."""

import os
import subprocess
import sys
import time

import pytest

from autotune.measure.gpu.timeline import GpuTimeline
from autotune.measure.gpu.usage import Attribution
from tests.fake_nvml.busy_reader import busy_fraction
from tests.fake_nvml.busy_writer import BusyWriter
from tests.gpu.collector_process import reading, records_of, until
from tests.gpu.conftest import TRAINER, UUID, machine_with

CONFIG = "{data: {batch_size: %d}, training: {}, costs: {load_s: 0.002, kernel_s: 0.001}}"
WATCHED_S = 5.0


@pytest.fixture
def machine(fake_gpu, tmp_path):
    """A GPU with two trainers on it, and a tenant that comes and goes; gives also the pids of the trainers."""
    machine = fake_gpu(machine_with(1), began_s_ago=30)
    tenant = BusyWriter(machine.tenants)  # of this very process: alive, and none of the trial's
    now_s = time.monotonic()
    for beat in range(200):
        tenant.kernel(now_s + 0.3 * beat, now_s + 0.3 * beat + 0.04)
    trainers = []
    for place, batch_size in enumerate((5, 20)):
        config = tmp_path / f"{place}.yaml"
        config.write_text(CONFIG % batch_size)
        trainers.append(subprocess.Popen([sys.executable, str(TRAINER), str(config)], env=machine.env))
    yield machine, {trainer.pid for trainer in trainers}
    for trainer in trainers:
        trainer.kill()
        trainer.wait()
    tenant.close()


def test_own_and_foreign_shares_are_those_of_the_intervals(machine, tmp_path):
    """Two trainers of a trial and a tenant: each side's share is right to two points, and the tenant is named."""
    machine, own_pids = machine
    until(lambda: len(list(machine.tenants.iterdir())) == 3, "the trainers did not begin")
    file = tmp_path / "samples.jsonl"
    with reading(file, [UUID.format(0)], env=machine.env):
        began_s = time.monotonic()
        until(lambda: any(record.t_s > began_s + WATCHED_S for record in records_of(file)), "the collector is silent")
    known = GpuTimeline([UUID.format(0)], since_s=began_s)
    for record in records_of(file):
        known.add(record)
    t0_s, t1_s = began_s + 0.5, began_s + WATCHED_S - 1.0
    use = known.between(t0_s, t1_s, own_pids=own_pids, started_s=began_s)
    (device,) = use.devices

    def truth(pids=None):
        return busy_fraction(machine.tenants, 0, t0_s, t1_s, pids=pids)

    assert device.figures.utilization == pytest.approx(truth(), abs=0.02)
    assert device.figures.own_fraction == pytest.approx(sum(truth({pid}) for pid in own_pids), abs=0.02)
    assert device.figures.foreign_fraction == pytest.approx(truth({os.getpid()}), abs=0.02)
    assert device.foreign_pids == (os.getpid(),)
    assert device.attribution is Attribution.BY_PROCESS
