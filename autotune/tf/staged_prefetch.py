"""Prefetch in stages: batches wait in host memory, then in the device's, then at the training loop's hand."""

import tensorflow as tf


def staged_prefetch(
    batches: tf.data.Dataset, device: str, *, host_batches: int = 0, device_batches: int = 1, ready_batches: int = 0
) -> tf.data.Dataset:
    """Return the same batches on a device, with a buffer at each stage, each filled by a thread of its own.

    The options of ``batches`` do not reach behind the copy. So give each buffer a number, as here, and not AUTOTUNE.

    Args:
        batches: The batches, in host memory.
        device: Name of the device, e.g. ``/GPU:0``.
        host_batches: Finished batches in host memory ahead of the copy, besides those that ``batches`` keeps itself.
        device_batches: Batches copied ahead; each takes its size in device memory.
        ready_batches: Batches on the device that a host thread has fetched ahead of the training loop, which then does
            not wait for the device's iterator; each takes its size in device memory too.

    Raises:
        ValueError: A buffer of less than none, or no batch copied ahead.
    """
    if min(host_batches, ready_batches) < 0 or device_batches < 1:
        raise ValueError(
            "host_batches and ready_batches must be at least 0, device_batches at least 1; got "
            f"{host_batches}, {ready_batches}, {device_batches}"
        )
    if host_batches:
        batches = batches.prefetch(host_batches)
    staged = batches.apply(tf.data.experimental.prefetch_to_device(device, device_batches))
    return staged.prefetch(ready_batches) if ready_batches else staged
