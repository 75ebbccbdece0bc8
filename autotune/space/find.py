"""Construction of a config's search space on a machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.records import CODE, Gpu, Machine, Scalar
from autotune.space.catalog import (
    KNOWN_KNOBS,
    KnownKnob,
    accumulations,
    batch_count,
    excluded_by,
    is_for_validation,
    is_global,
    is_per_device,
    is_searched_by_default,
    keys_with,
    knobs_with,
    known_knob,
)
from autotune.space.knob import (
    Carried,
    InactiveIf,
    Knob,
    Label,
    is_among,
    is_number,
    number_of,
    same_scalar,
    section_mates,
    with_baseline,
)
from autotune.space.space import Space

_MANY_SECTIONS = 4  # similar sections make a file a table of trainings

_ORDER = {row.kind: position for position, row in enumerate(KNOWN_KNOBS)}


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """Key that looks like a knob but is not searched."""

    path: str
    why: str


def build_space(
    config: Mapping[str, Scalar],
    domains: Mapping[str, Sequence[Scalar]] | None,
    machine: Machine,
    refused: Mapping[str, str],
) -> tuple[Space, tuple[Skipped, ...]]:
    """Return the space of a config on a machine, and the known knobs that were skipped.

    Args:
        config: All scalars by dotted path, in file order.
        domains: The user's knobs; None for known knobs found by name.
        refused: Keys that cannot be edited, with the reason.
    """
    builder = _Builder(config, domains, machine, refused)
    builder.take_knobs()
    builder.join_switches()
    builder.pair_devices()
    builder.relate_buffers()
    builder.relate_loaders()
    builder.leave_out_threads()
    builder.relate_batches()
    builder.leave_out_excluded()
    return builder.finish()


def of_other_sections(config: Mapping[str, Scalar], words: Sequence[str]) -> dict[str, str]:
    """Return the keys in sections of trainings that the command does not name, with the reason."""
    sections: dict[str, set[str]] = {}
    for path in config:
        section, _, key = path.partition(".")
        sections.setdefault(section, set()).add(key)
    for named in (section for section in sections if section in words):
        similar = [one for one, keys in sections.items() if 2 * len(keys & sections[named]) > len(sections[named])]
        if len(similar) >= _MANY_SECTIONS:
            why = f"it is not in section {named}, which the command names"
            others = {one for one in similar if one not in words}
            return {path: why for path in config if path.partition(".")[0] in others}
    return {}


@dataclass
class _Builder:
    """Builder of a space: takes the knobs one by one, then relates them."""

    _config: Mapping[str, Scalar]
    _domains: Mapping[str, Sequence[Scalar]] | None
    _machine: Machine
    _refused: Mapping[str, str]
    _skipped: list[Skipped] = field(default_factory=list)
    _knobs: list[Knob] = field(default_factory=list)

    def take_knobs(self) -> None:
        wanted = self._domains
        if wanted is None:
            wanted = {path: () for path, value in self._config.items() if is_searched_by_default(path, value)}
        rows = {path: _row(path, self._config[path], domain) for path, domain in wanted.items()}
        for path, row in sorted(rows.items(), key=lambda item: _ORDER[item[1].kind] if item[1] else len(_ORDER)):
            if path in self._refused:
                self._skip(path, self._refused[path])
            elif self._domains is None and is_for_validation(path):
                self._skip(path, "it is for validation, which trials do not measure")
            else:
                self._knobs.append(_knob(path, row, self._config, wanted[path], self._machine))

    def join_switches(self) -> None:
        for kind in (row.kind for row in KNOWN_KNOBS if row.is_one_switch):
            listed = self._having(kind=kind)
            if not listed:
                continue
            leader, others = listed[0], {knob.path: knob for knob in listed[1:]}
            joined = leader
            for path in keys_with(self._config, kind=kind):
                if path == leader.path or is_for_validation(path):
                    continue
                if path in others:
                    self._knobs.remove(others[path])
                if path in self._refused:
                    self._skip(path, self._refused[path])
                elif not same_scalar(self._config[path], leader.baseline):
                    self._skip(path, f"moves together with {leader.path}, but differs from it")
                else:
                    joined = replace(joined, carries=(*joined.carries, Carried(path=path, values=joined.choices)))
            self._put(leader, joined)

    def pair_devices(self) -> None:
        data = self._only_path(device="data")
        if data is None:
            return
        current = self._config[data]
        for model in self._having(device="model"):
            for knob in [knob for knob in self._knobs if knob.path == data]:
                self._knobs.remove(knob)
            tried = placements(current, model.baseline, self._machine.gpus)
            choices, ordered = (model.choices, model.ordered) if self._domains else with_baseline(tried, model.baseline)
            others = tuple(data_gpu(choice, current, model.baseline) for choice in choices)
            pairs = zip(choices, others, strict=True)
            split = tuple(choice for choice, other in pairs if choice not in (other, model.baseline))
            carried = (Carried(path=data, values=others),)
            self._put(model, replace(model, choices=choices, ordered=ordered, carries=carried, heuristic_values=split))
            if len(choices) == 1 and self._domains is None:
                self._skip(model.path, _why_not_placed(current, model.baseline, len(self._machine.gpus)))

    def relate_buffers(self) -> None:
        """Limit the buffer between two GPUs to separate GPUs for data and model."""
        model, data = self._only_path(device="model"), self._only_path(device="data")
        if model is None or data is None:
            return
        placement = next((knob for knob in self._knobs if knob.path == model and len(knob.choices) > 1), None)
        for buffer in self._having(needs_gpus=2):
            if placement is not None:
                together = tuple(choice for choice in placement.choices if placement.keys(choice).get(data) == choice)
                self._put(buffer, replace(buffer, inactive_if=InactiveIf(path=model, values=together)))
            elif self._domains is None and self._config[data] == self._config[model]:
                self._leave_out(buffer, "there is no buffer between two GPUs: data and model share one")

    def relate_loaders(self) -> None:
        """Limit ``persistent_workers`` in the trainer's code to loaders with workers."""
        for knob in self._having(kind="persistent_workers"):
            section = knob.path.rpartition(".")[0]
            mates = [one for one in self._having(counts="workers") if one.path.rpartition(".")[0] == section]
            if knob.path.startswith(CODE) and mates:
                self._put(knob, replace(knob, inactive_if=InactiveIf(path=mates[0].path, values=(0,))))

    def leave_out_threads(self) -> None:
        """Skip a script's threads if a GPU computes its steps and no loader needs the cores."""
        in_code = [knob for knob in self._knobs if knob.path.startswith(CODE)]
        threads = [knob for knob in in_code if knob.kind == "torch_threads"]
        if self._machine.gpus and len(threads) == len(in_code):
            self._knobs = [knob for knob in self._knobs if knob not in threads]

    def relate_batches(self) -> None:
        """Keep the keys of one batch consistent; prefer the per-device size to the global one."""
        sizes = [path for path in keys_with(self._config, counts="samples") if not is_for_validation(path)]
        keys, listed = _batch_keys(self._config, sizes), self._domains or {}
        if keys is not None and not ({*self._refused} & {*keys.paths} or {*listed} & {*keys.paths[1:]}):
            self._knobs = [knob for knob in self._knobs if knob.path != keys.whole]
            for knob in [knob for knob in self._knobs if knob.path == keys.part]:
                self._put(knob, _with_accumulation(knob, keys, with_further=not listed.get(knob.path)))
            return
        wholes = [path for path in sizes if is_global(path)]
        parts = [knob for knob in self._having(counts="samples") if is_per_device(knob.path)]
        if len(wholes) != 1 or not parts or (self._domains is not None and wholes[0] in self._domains):
            return
        for knob in self._having(counts="samples"):
            if is_global(knob.path):
                self._leave_out(knob, f"the global batch is fixed; {parts[0].path}, the batch per device, is searched")
        for knob in parts:
            self._put(knob, dividing(knob, self._config[wholes[0]]))

    def leave_out_excluded(self) -> None:
        for knob in list(self._knobs):
            whys = [self._why_excluded(knob, choice) for choice in knob.choices]
            pairs = zip(knob.choices, whys, strict=True)
            left = [choice for choice, why in pairs if not why or same_scalar(choice, knob.baseline)]
            if len(left) < len(knob.choices):
                self._put(knob, kept := knob.narrowed(left))
                if len(left) == 1:
                    self._leave_out(kept, next(why for why in whys if why))

    def _why_excluded(self, knob: Knob, choice: Scalar) -> str | None:
        free = {path for other in self._knobs for path in other.paths}
        for kind, values in excluded_by(knob, choice).items():
            keys = [path for path in keys_with(self._config, kind=kind) if not is_for_validation(path)]
            for path in section_mates(knob.path, keys):
                if path not in free and is_among(self._config[path], values):
                    return f"other values conflict with {path}: {self._config[path]}"
        return None

    def finish(self) -> tuple[Space, tuple[Skipped, ...]]:
        for knob in [knob for knob in self._knobs if len(knob.choices) == 1]:
            if self._domains and self._domains.get(knob.path):
                self._skip(knob.path, "its domain holds only today's value")
            self._knobs.remove(knob)
        free = {path for knob in self._knobs for path in knob.paths}
        fixed = {path: value for path, value in self._config.items() if path not in free}
        rows = ((known_knob(path, value), value) for path, value in fixed.items() if not is_for_validation(path))
        always_settles = any(row is not None and value in row.settling for row, value in rows)
        return Space(knobs=tuple(self._knobs), always_settles=always_settles), tuple(self._skipped)

    def _only_path(self, **columns: object) -> str | None:
        paths = [path for path in keys_with(self._config, **columns) if path not in self._refused]
        return paths[0] if len(paths) == 1 else None

    def _having(self, **columns: object) -> list[Knob]:
        return knobs_with(self._knobs, **columns)

    def _put(self, old: Knob, new: Knob) -> None:
        self._knobs[self._knobs.index(old)] = new

    def _leave_out(self, knob: Knob, why: str) -> None:
        self._knobs.remove(knob)
        self._skip(knob.path, why)

    def _skip(self, path: str, why: str) -> None:
        if all(one.path != path for one in self._skipped):
            self._skipped.append(Skipped(path=path, why=why))


def _why_not_placed(data: Scalar, model: Scalar, gpus: int) -> str:
    if gpus < 2:
        return f"data and model can have a GPU each only with two GPUs, and there {'is one' if gpus else 'is none'}"
    assert (data is None) != (model is None)
    return "only one of the GPUs of data and model is null, and its meaning is unknown: set both, or neither"


def _row(path: str, baseline: Scalar, domain: Sequence[Scalar]) -> KnownKnob | None:
    """Return the row of a knob if it accepts all values of the user's domain."""
    row = known_knob(path, baseline) or (known_knob(path, number_of(baseline)) if domain else None)
    if row is None or not (is_number(baseline) or not row.accepts(baseline)):
        return row
    return row if all(row.accepts(number_of(value)) for value in domain) else None


def _knob(
    path: str, row: KnownKnob | None, config: Mapping[str, Scalar], domain: Sequence[Scalar], machine: Machine
) -> Knob:
    baseline = config[path]
    if row and is_number(baseline):
        domain = tuple(map(number_of, domain))
    present = baseline if row is None or row.accepts(baseline) else number_of(baseline)
    proposed = tuple(domain) or (row.domain(baseline, machine) if row else ())
    # calls in code accept 0 for a loader's workers only
    is_number_in_code = path.startswith(CODE) and not isinstance(baseline, bool) and baseline
    if is_number_in_code and (row is None or row.kind != "workers"):
        proposed = tuple(value for value in proposed if value != 0)
    far = row.far_values(baseline, machine) if row and not domain else ()
    choices, ordered = with_baseline(dict.fromkeys((*proposed, *far)), baseline)
    heuristic_values = row.heuristic_values(present, machine) if row else ()
    return Knob(
        path=path,
        choices=choices,
        ordered=ordered,
        baseline=baseline,
        label=row.label if row else Label.UNKNOWN,
        kind=row.kind if row else None,
        reach=max(value for value in proposed if isinstance(value, int | float)) if far else None,
        bundled=row.bundled if row else False,
        heuristic_values=tuple(value for value in heuristic_values if is_among(value, choices)),
        settling=tuple(value for value in (row.settling if row else ()) if is_among(value, choices)),
        batch=batch_count(path, config) if row and row.counts == "samples" else None,
    )


# Placements: the GPU that prepares the data and the GPU that trains, set by one knob.


def placements(data: Scalar, model: Scalar, gpus: Sequence[Gpu]) -> tuple[Scalar, ...]:
    """Return the placements worth trying, by the model's GPU, the baseline first.

    They are shared, separate, and swapped if the GPUs differ.

    Args:
        data: Index of the baseline's data GPU; None leaves it to the trainer.
    """
    if len(gpus) < 2 or (data is None) != (model is None):
        return (model,)
    if data is None:
        return (None, 1, 0) if _differ(0, 1, gpus) else (None, 1)
    if data == model:
        return (model, 1 if model == 0 else 0)
    return (model, data, None) if _differ(data, model, gpus) else (model, None)


def data_gpu(choice: Scalar, data: Scalar, model: Scalar) -> Scalar:
    """Return the data GPU of a placement."""
    if choice == model or (data is None) != (model is None):
        return data
    if choice is None:
        return None  # one GPU for both
    if data is None:
        return 1 if choice == 0 else 0
    return model if choice == data else data


def untried_placement(data: Scalar, model: Scalar, gpus: Sequence[Gpu]) -> str | None:
    """Return why GPUs are tried in one order only, if they are."""
    found = placements(data, model, gpus)
    split = [(one, choice) for choice in found if (one := data_gpu(choice, data, model)) != choice]
    if len(found) == 1 or len(split) != 1:
        return None
    first, second = split[0]
    if not _differ(first, second, gpus):
        return f"GPUs {first} and {second} are equal: data on {first} and training on {second} stands for both orders"
    untried = f"data on {second} and training on {first} is not tried, because today both are on {first}"
    return f"{untried}: set both keys to null to try it"


def _differ(one: Scalar, other: Scalar, gpus: Sequence[Gpu]) -> bool:
    pair = [gpus[place] if isinstance(place, int) and place < len(gpus) else None for place in (one, other)]
    return None in pair or len({(gpu.name, gpu.memory_bytes) for gpu in pair if gpu}) > 1


# Gradient accumulation that compensates for a batch size.


@dataclass(frozen=True, kw_only=True)
class _BatchKeys:
    """Keys of one batch: computed at once, accumulation, and perhaps the global product."""

    part: str
    accumulation: str
    whole: str | None
    devices: int

    @property
    def paths(self) -> Sequence[str]:
        return [path for path in (self.part, self.accumulation, self.whole) if path is not None]


def _batch_keys(config: Mapping[str, Scalar], sizes: Sequence[str]) -> _BatchKeys | None:
    """Return the keys of one batch, if they are consistent and one depends on a size."""
    parts, found = [path for path in sizes if is_per_device(path)], accumulations(config)
    if len(found) != 1 or len(sizes) - len(parts) > 1 or len(parts) > 1:
        return None
    (accumulation, steps), whole = next(iter(found.items())), next((path for path in sizes if path not in parts), None)
    if not parts and (whole is None or is_global(whole)):
        return None
    if not parts or whole is None:
        part = parts[0] if parts else whole
        assert part is not None
        return _BatchKeys(part=part, accumulation=accumulation, whole=None, devices=1) if steps > 1 else None
    devices, rest = divmod(_size(config[whole]), _size(config[parts[0]]) * steps)
    return None if rest else _BatchKeys(part=parts[0], accumulation=accumulation, whole=whole, devices=devices)


def _with_accumulation(knob: Knob, keys: _BatchKeys, *, with_further: bool) -> Knob:
    """Return the knob with sizes that accumulation fills up to the present effective batch, and larger ones."""
    assert knob.batch is not None
    now, most = _size(knob.baseline), _size(knob.baseline) * knob.batch.accumulated
    choices: dict[int, Scalar] = {_size(choice): choice for choice in knob.choices}  # perhaps numbers in quotes
    if with_further:
        further = [most, 2 * most, 4 * most, *(now * 2**power for power in range(32) if now * 2**power < most)]
        choices = {size: size for size in further} | choices
    sizes = sorted(size for size in choices if size > most or most % size == 0)
    carried = [Carried(path=keys.accumulation, values=tuple(max(1, most // size) for size in sizes))]
    if keys.whole is not None:
        carried.append(Carried(path=keys.whole, values=tuple(keys.devices * max(size, most) for size in sizes)))
    return replace(
        knob,
        choices=tuple(choices[size] for size in sizes),
        heuristic_values=tuple(choices[size] for size in (most, 4 * most) if size != now and size in sizes),
        carries=(*knob.carries, *carried),
        batch=replace(knob.batch, kept_up_to=most),
    )


def dividing(knob: Knob, whole: Scalar) -> Knob:
    """Restrict a per-device batch to divisors of the global one, which accumulation keeps."""
    fitting = [size for size in knob.choices if _size(whole) % _size(size) == 0 or size == knob.baseline]
    return replace(knob.narrowed(fitting), label=Label.SAME_TRAINING)


def _size(value: Scalar) -> int:
    number = number_of(value)
    assert isinstance(number, int)  # the catalog row accepts nothing else
    return number
