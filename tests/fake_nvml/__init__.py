"""A fake NVIDIA driver at NVML's own boundary, so that the unmodified ``pynvml`` runs where there is no GPU.

`scenario` says what the GPUs do, `busy_writer` is what fake trainers say with when their kernels run, `library` builds
the C sources here (begin with call.c) and makes machines of them, and `plugin` has the fixture ``fake_gpu``:

    machine = fake_gpu(Scenario(gpus=(Gpu(busy_percent=Square(10, 90, period_s=2.0)),)), at_s=20)
    machine.run("nvmlInit(); tell(nvmlDeviceGetUtilizationRates(nvmlDeviceGetHandleByIndex(0)).gpu)")
    subprocess.run(command, env=machine.env)
"""
