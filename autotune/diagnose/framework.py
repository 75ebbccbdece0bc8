"""Checks of the framework beside the trainer's interpreter: its build, graph mode and XLA, and its own decoders."""

from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.framework_answers import Answer, FrameworkAnswers
from autotune.diagnose.look import Look
from autotune.messages import _, listed, ngettext

FRAMEWORK, GRAPH, LOADER = "framework", "graph-and-xla", "native-loader"
_WORDS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
_INSTALL = {
    "tensorflow": "pip install 'tensorflow[and-cuda]'",
    "torch": _("see pytorch.org/get-started for the command"),
}
_UNKNOWN = _("no framework is known")
_NO_ANSWER = _("it gave no answer")


def check_framework(look: Look) -> CheckResult:
    """See whether the framework loads, and sees the GPUs that are there."""
    answers = look.framework
    if not answers.framework:
        return CheckResult(check=FRAMEWORK, why_not=answers.why_not or _UNKNOWN)
    name = _WORDS[answers.framework]
    loaded = answers.answers.get("import")
    if loaded is not None and loaded.error is not None:
        failed = _("{name} cannot be imported: {error}.", name=name, error=loaded.error)
        again = _("Install it again.")
        return CheckResult(check=FRAMEWORK, issues=(_issue(FRAMEWORK, failed, again, Severity.ERROR),))
    version, gpus = answers.answers.get("version"), answers.answers.get("gpus")
    if version is None or gpus is None:
        silent = _("{name} gave no answer", name=name)
        return CheckResult(check=FRAMEWORK, why_not=answers.why_not or silent)
    issues = []
    if gpus.error is not None:
        blind = _(
            "{name} {version} cannot look for GPUs: {error}.",
            name=name,
            version=version.value,
            error=gpus.error,
        )
        issues.append(_issue(FRAMEWORK, blind, ""))
    elif gpus.value == 0 and look.gpus and _is_meant_for_gpus(look):
        built = answers.answers.get("built for GPUs")
        cpu_only = built is not None and built.value is False
        for_cpus = _("it is a build for CPUs alone")
        libraries = _("it may be that its CUDA libraries do not load, or do not suit the driver")
        issues.append(
            _issue(
                FRAMEWORK,
                _(
                    "{name} {version} sees no GPU though {gpu} is there: {why}.",
                    name=name,
                    version=version.value,
                    gpu=look.gpus[0].name,
                    why=for_cpus if cpu_only else libraries,
                ),
                _("Install a build for GPUs: {command}.", command=_INSTALL[answers.framework]),
                limit=Limit.STEP,
            )
        )
    took = ""
    if loaded is not None:
        took = _("; imported in {seconds:.1f} s", seconds=loaded.duration_s)
    sentence = ngettext(
        "{name} {version}, which sees {count} GPU{took}",
        "{name} {version}, which sees {count} GPUs{took}",
        gpus.value if isinstance(gpus.value, int) else 0,
        name=name,
        version=version.value,
        took=took,
    )
    return CheckResult(check=FRAMEWORK, issues=tuple(issues), sentence=sentence)


def check_graph(look: Look) -> CheckResult:
    """See whether TensorFlow compiles a small function into a graph, and with XLA."""
    answers = look.framework
    if why_not := _why_not_tensorflow(answers):
        return CheckResult(check=GRAPH, why_not=why_not)
    graph_mode = _("graph mode")
    tried = {name: answers.answers.get(key) for name, key in ((graph_mode, "graph"), ("XLA", "xla"))}
    issues, works = [], []
    for name, answer in tried.items():
        if answer is not None and answer.error is None:
            works.append(
                _(
                    "{name} works ({seconds:.1f} s for a small function)",
                    name=name,
                    seconds=answer.duration_s,
                )
            )
            continue
        why = answer.error if answer is not None else answers.why_not or _NO_ANSWER
        fails = _("{name} fails here: {why}.", name=name, why=why)
        off = _("Leave it off in the config, or mend the installation.")
        issues.append(_issue(GRAPH, fails, off))
    return CheckResult(check=GRAPH, issues=tuple(issues), sentence=listed(" and ", works))


def check_native_loader(look: Look) -> CheckResult:
    """See whether TensorFlow's own ops decode a file of the dataset."""
    answers = look.framework
    if why_not := _why_not_tensorflow(answers):
        return CheckResult(check=LOADER, why_not=why_not)
    if answers.sample is None:
        return CheckResult(
            check=LOADER,
            why_not=_("the config names no folder with .wav, .png, .jpg or .tfrecord files"),
        )
    answer: Answer | None = answers.answers.get("decode")
    if answer is not None and answer.error is None:
        return CheckResult(
            check=LOADER,
            sentence=_("{file} is {what}", file=answers.sample.name, what=answer.value),
        )
    why = answer.error if answer is not None else answers.why_not or _NO_ANSWER
    issue = Issue(
        check=LOADER,
        severity=Severity.NOTE,
        sentence=_("TensorFlow's own ops do not decode this file: {why}.", why=why),
        place=str(answers.sample),
        limit=Limit.PREPARING,
        recommendations=(Recommendation(sentence=_("Convert the files once, e.g. to 16-bit PCM WAV or to TFRecord.")),),
    )
    return CheckResult(check=LOADER, issues=(issue,))


def _why_not_tensorflow(answers: FrameworkAnswers) -> str | None:
    if answers.framework == "torch":
        return _("the trainer uses PyTorch")
    if not answers.framework:
        return answers.why_not or _UNKNOWN
    loaded = answers.answers.get("import")
    if loaded is None or loaded.error is not None:
        return answers.why_not or _("TensorFlow cannot be imported")
    return None


def _is_meant_for_gpus(look: Look) -> bool:
    return look.problem is None or bool(look.problem.machine.gpus)


def _issue(
    check: str, sentence: str, remedy: str, severity: Severity = Severity.WARNING, limit: Limit | None = None
) -> Issue:
    advice = (Recommendation(sentence=remedy),) if remedy else ()
    return Issue(check=check, severity=severity, sentence=sentence, limit=limit, recommendations=advice)
