"""Indexed Job of Kubernetes: each of its pods lends a node to a study."""

import json
import re
from dataclasses import dataclass
from datetime import datetime

from autotune import __version__
from autotune.errors import ConfigError
from autotune.submission.worker_job import WorkerJob, plain_name

_UNPRINTED = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")
_MOST_TRIES = 2


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Pods of a Job, beside what they run.

    Attributes:
        count: Their number.
        image: Image with the trainer, the config and autotune.
        gpus: GPUs of each; 0 for none.
        secret: Name of the Secret whose key ``url`` is the address of the storage.
    """

    count: int
    image: str
    gpus: int
    secret: str


def manifest(job: WorkerJob, pods: Pods, now: datetime) -> str:
    """Return the manifest, in YAML.

    Args:
        job: The workers; its directory does not count, that of the image does.
        pods: The pods.
        now: Time in UTC, for the Job's name: finished Jobs keep theirs.

    Raises:
        ConfigError: A text is none that a manifest can hold.
    """
    seed = f"{job.seed or ''}$(JOB_COMPLETION_INDEX)"
    words = ", ".join([*(_scalar(word.replace("$", "$$")) for word in job.words), '"--seed"', _scalar(seed)])
    gpus = (
        f'\n          resources:\n            limits:\n              nvidia.com/gpu: "{pods.gpus}"' if pods.gpus else ""
    )
    return f"""\
# Workers of autotune {__version__}; start them with: kubectl create -f FILE
# The address of the storage is in a Secret, never in here. It is made once, from a file that holds the address:
#   kubectl create secret generic {pods.secret} --from-file=url=FILE
apiVersion: batch/v1
kind: Job
metadata:
  name: {_scalar(f"autotune-{plain_name(job.config)}-{now:%Y%m%d-%H%M%S}")}
  labels: {{app.kubernetes.io/name: autotune, app.kubernetes.io/component: worker}}
spec:
  completionMode: Indexed
  completions: {pods.count}
  parallelism: {pods.count}
  backoffLimitPerIndex: {_MOST_TRIES}
  podFailurePolicy:
    rules:
      # A pod that is preempted or drained gives its trial back within the grace period; another one takes its place.
      - action: Ignore
        onPodConditions:
          - {{type: DisruptionTarget, status: "True"}}
  template:
    metadata:
      labels: {{app.kubernetes.io/name: autotune, app.kubernetes.io/component: worker}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 30
      # Two workers on one node would disturb each other's measurements.
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels: {{app.kubernetes.io/name: autotune, app.kubernetes.io/component: worker}}
      containers:
        - name: worker
          image: {_scalar(pods.image)}
          command: [{words}]
          env:
            - name: AUTOTUNE_STORAGE
              valueFrom:
                secretKeyRef: {{name: {_scalar(pods.secret)}, key: url}}{gpus}
"""


def _scalar(text: str) -> str:
    """Return a text as a double-quoted scalar of YAML 1.2, of which JSON is a part but for a few characters.

    Raises:
        ConfigError: It is no text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of a path that are not UTF-8
        raise ConfigError(
            f"a manifest cannot hold {text!a}", where="--submit kubernetes", remedy="Use names in UTF-8."
        ) from error
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
