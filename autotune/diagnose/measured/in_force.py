"""Check of what is in force in the trainer's process: threads, precision, eager mode, devices, against the config."""

from collections.abc import Iterator, Mapping, Sequence

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.messages.message import Message, said
from autotune.records import Machine, Scalar, TraineeEvent
from autotune.space.knob import Knob
from autotune.space.space import Space

CHECK = "in-force"

_THREADS = {
    "intra_op_threads": ("tensorflow.intra_op_threads", "torch.threads"),
    "inter_op_threads": ("tensorflow.inter_op_threads", "torch.interop_threads"),
}
"""Kind of knob → the settings that it is meant to set."""

_GPUS = ("tensorflow.gpus", "torch.gpus")
_SINGLE, _HALF = "float32", ("mixed_float16", "mixed_bfloat16")


def judge_in_force(events: Sequence[TraineeEvent], space: Space, machine: Machine) -> CheckResult:
    """Judge whether the trainer's process works as the config says.

    Args:
        events: Events of a trial that was taken through phases: it reports its settings when these begin.
        space: The search space; its knobs are those that are compared.
        machine: The machine.
    """
    reported = [event.settings for event in events if event.kind == "in_force" and event.settings]
    if not reported:
        return CheckResult(
            check=CHECK,
            why_not=said("in-force.not-told", "no framework in the trainer's process has told its settings"),
        )
    settings = reported[-1]
    issues = [*_gpus(settings, machine), *(issue for knob in space.knobs for issue in _of(knob, settings))]
    told = ", ".join(f"{name} {_text(value)}" for name, value in settings.items())
    return CheckResult(check=CHECK, issues=tuple(issues), sentence=said("sentence", "{clause}.", clause=told))


def _gpus(settings: Mapping[str, Scalar], machine: Machine) -> Iterator[Issue]:
    seen = [settings[name] for name in _GPUS if name in settings]
    if machine.gpus and seen and not any(seen):
        yield Issue(
            check=CHECK,
            severity=Severity.ERROR,
            sentence=said(
                "in-force.no-gpu",
                "{gpu} is there, and the trainer's framework uses no GPU: it trains on the CPU.",
                gpu=machine.gpus[0].name,
            ),
            limit=Limit.STEP,
        )


def _of(knob: Knob, settings: Mapping[str, Scalar]) -> Iterator[Issue]:
    """Yield what differs from today's value of a knob."""
    value = knob.baseline
    for name in _THREADS.get(knob.kind or "", ()):
        there = settings.get(name)
        if isinstance(value, int) and value > 0 and there is not None and there != value:
            yield _differs(knob, said("in-force.other", "{name} is {value}", name=name, value=_text(there)))
    precision = settings.get("keras.precision")
    if knob.kind == "precision" and isinstance(value, str) and precision is not None:
        # A trainer may cast by itself; the other way round nobody does by accident.
        if value == _SINGLE and precision in _HALF:
            yield _differs(knob, said("in-force.policy", "Keras' policy is {policy}", policy=_text(precision)))
        elif value in _HALF and precision != value:
            yield _differs(
                knob,
                said(
                    "in-force.policy-or-cast",
                    "Keras' policy is {policy}; a trainer may cast by itself",
                    policy=_text(precision),
                ),
            )
    if knob.kind == "graph_mode" and value is True and settings.get("tensorflow.runs_eagerly") is True:
        yield _differs(knob, said("in-force.eager", "TensorFlow runs functions eagerly, op by op"), Limit.HOST)


def _differs(knob: Knob, there: Message, limit: Limit | None = None) -> Issue:
    return Issue(
        check=CHECK,
        severity=Severity.WARNING,
        sentence=said(
            "in-force.not",
            "{key}: {value} is not in force: {there}.",
            key=knob.path,
            value=_text(knob.baseline),
            there=there,
        ),
        place=knob.path,
        limit=limit,
    )


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
