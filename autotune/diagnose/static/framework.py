"""Checks of the framework beside the trainer's interpreter: its build, graph mode and XLA, and its own decoders."""

from autotune.diagnose.findings import CheckResult, Issue, Limit, Recommendation, Severity
from autotune.diagnose.static.framework_answers import Answer, FrameworkAnswers
from autotune.diagnose.static.look import Look

FRAMEWORK, GRAPH, LOADER = "framework", "graph-and-xla", "native-loader"
_WORDS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
_INSTALL = {"tensorflow": "pip install 'tensorflow[and-cuda]'", "torch": "see pytorch.org/get-started for the command"}


def check_framework(look: Look) -> CheckResult:
    """See whether the framework loads, and sees the GPUs that are there.

    Args:
        look: What is diagnosed.
    """
    answers = look.framework
    if not answers.framework:
        return CheckResult(check=FRAMEWORK, why_not=answers.why_not or "no framework is known")
    name = _WORDS[answers.framework]
    loaded = answers.answers.get("import")
    if loaded is not None and loaded.error is not None:
        failed = _issue(FRAMEWORK, f"{name} cannot be imported: {loaded.error}.", "Install it again.", Severity.ERROR)
        return CheckResult(check=FRAMEWORK, issues=(failed,))
    version, gpus = answers.answers.get("version"), answers.answers.get("gpus")
    if version is None or gpus is None:
        return CheckResult(check=FRAMEWORK, why_not=answers.why_not or f"{name} gave no answer")
    issues = []
    if gpus.error is not None:
        issues.append(_issue(FRAMEWORK, f"{name} {version.value} cannot look for GPUs: {gpus.error}.", ""))
    elif gpus.value == 0 and look.gpus and _is_meant_for_gpus(look):
        built = answers.answers.get("built for GPUs")
        cpu_only = built is not None and built.value is False
        why = "it is a build for CPUs alone" if cpu_only else "its CUDA libraries do not load or suit the driver"
        issues.append(
            _issue(
                FRAMEWORK,
                f"{name} {version.value} sees no GPU though {look.gpus[0].name} is there: {why}.",
                f"Install a build for GPUs: {_INSTALL[answers.framework]}.",
                limit=Limit.STEP,
            )
        )
    said = f"{name} {version.value}, which sees {gpus.value} GPU{'s' * (gpus.value != 1)}"
    took = f"; imported in {loaded.duration_s:.1f} s" if loaded is not None else ""
    return CheckResult(check=FRAMEWORK, issues=tuple(issues), sentence=said + took)


def check_graph(look: Look) -> CheckResult:
    """See whether TensorFlow compiles a small function into a graph, and with XLA.

    Args:
        look: What is diagnosed.
    """
    answers = look.framework
    if why_not := _why_not_tensorflow(answers):
        return CheckResult(check=GRAPH, why_not=why_not)
    tried = {name: answers.answers.get(key) for name, key in (("graph mode", "graph"), ("XLA", "xla"))}
    issues, said = [], []
    for name, answer in tried.items():
        if answer is not None and answer.error is None:
            said.append(f"{name} works ({answer.duration_s:.1f} s for a small function)")
            continue
        why = answer.error if answer is not None else answers.why_not or "it gave no answer"
        issues.append(
            _issue(GRAPH, f"{name} fails here: {why}.", "Leave it off in the config, or mend the installation.")
        )
    return CheckResult(check=GRAPH, issues=tuple(issues), sentence=" and ".join(said))


def check_native_loader(look: Look) -> CheckResult:
    """See whether TensorFlow's own ops decode a file of the dataset.

    Args:
        look: What is diagnosed.
    """
    answers = look.framework
    if why_not := _why_not_tensorflow(answers):
        return CheckResult(check=LOADER, why_not=why_not)
    if answers.sample is None:
        return CheckResult(check=LOADER, why_not="the config names no folder with .wav, .png, .jpg or .tfrecord files")
    answer: Answer | None = answers.answers.get("decode")
    if answer is not None and answer.error is None:
        return CheckResult(check=LOADER, sentence=f"{answers.sample.name} is {answer.value}")
    why = answer.error if answer is not None else answers.why_not or "it gave no answer"
    issue = Issue(
        check=LOADER,
        severity=Severity.NOTE,
        sentence=f"TensorFlow's own ops do not decode this file: {why}.",
        place=str(answers.sample),
        limit=Limit.PREPARING,
        recommendations=(Recommendation(sentence="Convert the files once, e.g. to 16-bit PCM WAV or to TFRecord."),),
    )
    return CheckResult(check=LOADER, issues=(issue,))


def _why_not_tensorflow(answers: FrameworkAnswers) -> str | None:
    if answers.framework == "torch":
        return "the trainer uses PyTorch"
    if not answers.framework:
        return answers.why_not or "no framework is known"
    loaded = answers.answers.get("import")
    if loaded is None or loaded.error is not None:
        return answers.why_not or "TensorFlow cannot be imported"
    return None


def _is_meant_for_gpus(look: Look) -> bool:
    """Return whether nothing hides the GPUs from trials."""
    return look.problem is None or bool(look.problem.machine.gpus)


def _issue(
    check: str, sentence: str, remedy: str, severity: Severity = Severity.WARNING, limit: Limit | None = None
) -> Issue:
    advice = (Recommendation(sentence=remedy),) if remedy else ()
    return Issue(check=check, severity=severity, sentence=sentence, limit=limit, recommendations=advice)
