// Other sections of the page: GPUs, trainings, queue, recommendations, daemon.

import { bar, hourLine } from "./chart.js";
import { command, el, folded, table } from "./dom.js";
import { fact, running, VERDICTS } from "./search.js";
import { count, duration, gib, interval, known, localTime, percent, ratio, shortPath, speed, UNKNOWN } from "./words.js";

const empty = (...text) => el("p", { class: "empty" }, text);
const more = (left) => (left ? el("p", { class: "muted" }, `and ${left} more (not shown)`) : null);
const range = (low, high) => `${Math.round(100 * low)}-${percent(high)}`;
const tag = (kind, text) => el("span", { class: `tag ${kind}` }, text);
const WHOSE = { search: "autotune search", training: "watched training", other: "other process" };

/** Table of the last hour: means of the series over 5 minutes. */
function hourTable(caption, history, columns) {
  const series = columns.map(([name]) => history.series[name] ?? []), length = Math.max(0, ...series.map((one) => one.length));
  const rows = [];
  for (let end = length; end > 0; end -= 10) {
    const until = new Date(Date.parse(history.ends_utc) - (length - end) * history.stretch_s * 1000);
    const means = series.map((one) => one.slice(Math.max(0, end - 10), end).filter((value) => value !== null));
    rows.push([localTime(until), ...means.map((some, place) => (some.length ? columns[place][2](some.reduce((a, b) => a + b) / some.length) : UNKNOWN))]);
  }
  return table(caption, [["5 minutes until", ""], ...columns.map(([, title]) => [title, "number"])], rows);
}

function gpu(one) {
  const name = `GPU ${one.index}`, series = one.history.series;
  if (one.why_unknown) return el("article", {}, el("h3", {}, name, " ", el("small", {}, one.name)), empty(`No readings: ${one.why_unknown}`));
  const used = one.memory_used_bytes !== null && one.memory_total_bytes ? one.memory_used_bytes / one.memory_total_bytes : null;
  const power = one.power_w !== null && one.power_limit_w ? one.power_w / one.power_limit_w : null;
  const unknown = [];
  const row = (title, value, text, share, values, top) => (value === null && !values?.some((one) => one !== null) ? (unknown.push(title), null)
    : el("div", { class: "row" }, el("span", { class: "what" }, title), el("span", { class: "number" }, known(value, text)),
      bar(share, `${title} now: ${known(value, text)}`), hourLine(values ?? [], top, `${name}, ${title} in the last hour; data in the table below`)));
  const fact_ = (title, value, text) => (value === null ? (unknown.push(title), null) : el("span", {}, text(value)));
  return el("article", {},
    el("h3", {}, name, " ", el("small", {}, one.name)),
    row("utilization", one.utilization, percent, one.utilization, series.utilization, 1),
    row("memory", one.memory_used_bytes, gib, used, series.memory, 1),
    row("power", one.power_w, (watts) => `${watts} W`, power, series.power_w, one.power_limit_w),
    el("p", { class: "muted dots" }, fact_("total memory", one.memory_total_bytes, (bytes) => `${gib(bytes)} memory`), fact_("SM clock", one.sm_clock_mhz, (mhz) => `SM clock ${mhz} MHz`),
      fact_("temperature", one.temperature_c, (degrees) => `${degrees} °C`),
      fact_("throttling", one.throttled_by, (reasons) => (reasons.length ? el("b", {}, `clocks throttled by ${reasons.join(", ")}`) : "clocks not throttled"))),
    unknown.length ? el("p", { class: "muted" }, `Unknown: ${unknown.join(", ")}.`) : null,
    one.users.length ? el("ul", { class: "users" }, one.users.map((user) => el("li", {},
      tag(user.whose, WHOSE[user.whose]), ` ${user.name ?? "process"} (${user.pid})${user.memory_bytes === null ? "" : `, ${gib(user.memory_bytes)}`}`)))
      : el("p", { class: "muted" }, "The driver lists no process on it."),
    more(one.users_left_out),
    series.utilization && folded(`hour ${one.uuid}`, "Last hour (table)", hourTable(`${name} in the last hour`, one.history,
      [["utilization", "utilization", percent], ["memory", "memory", percent], ["power_w", "power", (value) => `${Math.round(value)} W`]])));
}

export const gpusSection = (gpus) => (gpus.why_none ? [empty(`No GPU shown: ${gpus.why_none}.`)] : [gpus.devices.map(gpu), more(gpus.left_out)]);

function training(one) {
  const isConfirmed = one.confirmed_samples_per_s !== null, [low, high] = one.expected ?? [0, 0];
  const verdict = one.is_slow ? tag("alarm", "▼ slower than its usual speed") : one.ratio === null ? tag("", "no confirmed speed to compare with")
    : one.ratio < low ? tag("alarm", "▼ below the confirmed speed") : tag("good", "● as fast as confirmed");
  return el("article", {},
    el("h3", {}, el("span", { title: one.name }, shortPath(one.name)), " ", el("small", {}, `process ${one.pid}, running for `, running(one.started_utc))), el("p", {}, verdict),
    el("div", { class: "row" }, el("span", { class: "what" }, "of confirmed"), el("span", { class: "number" }, percent(one.ratio)),
      bar(one.ratio === null ? null : one.ratio / 1.25, `${percent(one.ratio)} of the confirmed speed${isConfirmed ? `; expected ${range(low, high)}` : ""}`,
        { band: isConfirmed ? [low / 1.25, high / 1.25] : null, kind: one.is_slow ? "alarm" : "" }),
      hourLine(one.history.series.samples_per_s ?? [], isConfirmed ? one.confirmed_samples_per_s * 1.25 : 0, `Speed of ${one.name} in the last hour; data in the table below`)),
    el("p", { class: "muted" }, `${known(one.samples_per_s, speed)} now`, isConfirmed ? `, ${speed(one.confirmed_samples_per_s)} confirmed (expected ${range(low, high)})` : "", ` · ${count(one.steps, "step", "steps")}`),
    folded(`hour ${one.id}`, "Last hour (table)", hourTable(`${one.name} in the last hour`, one.history, [["samples_per_s", "samples", speed]])));
}

const alarm = (one) => el("li", { class: one.is_open ? "open" : "" },
  one.is_open ? tag("alarm", "▲ alarm") : one.kind === "recovered" ? tag("good", "● recovered") : tag("", "○ closed"),
  ` ${localTime(one.utc)} `, one.message);

export function trainingsSection(trainings) {
  const now = trainings.alarms.filter((one) => one.is_open), before = trainings.alarms.filter((one) => !one.is_open);
  return [
    now.length ? el("ul", { class: "alarms" }, now.map(alarm)) : null,
    trainings.trainings.length ? trainings.trainings.map(training) : empty("No training is watched. In a terminal: ", el("code", {}, "autotune run --watch --config config.yaml")),
    more(trainings.left_out),
    before.length ? folded("alarms before", count(before.length, "closed alarm", "closed alarms"), el("ul", { class: "alarms" }, before.map(alarm))) : null,
  ];
}

const ACTIONS = { waiting: ["pause", "remove"], running: ["pause", "remove"], paused: ["resume", "remove"], held: ["resume", "remove"], failed: ["resume", "remove"], done: ["remove"] };
const STATES = { waiting: "○ waiting", running: "▶ running", paused: "‖ paused", held: "◇ held", done: "● done", failed: "✕ failed" };

export function queueSection(queue, act) {
  const trouble = queue.trouble ? el("p", { class: "trouble" }, queue.trouble) : null;
  if (!queue.entries.length) return [trouble ?? empty("The queue is empty.")];
  const canAct = act !== null;
  const buttons = (entry) => (ACTIONS[entry.state] ?? []).map((action) => el("button", { type: "button", "data-key": `${action} ${entry.id}`,
    "aria-label": `${action} entry ${entry.number}`, click: () => act(action, entry.id, `${action} entry ${entry.number}, ${shortPath(entry.config)}`, action === "remove") }, action));
  return [trouble, table("Queue: open entries in order, then closed entries",
    [["entry", "number"], ["state", ""], ["config", "wide"], ["budget used", "number"], ["start", ""], ["gain", "number"], ...(canAct ? [["actions", "buttons"]] : [])],
    queue.entries.map((entry) => [String(entry.number), tag(entry.state, STATES[entry.state] ?? entry.state),
      [el("span", { title: entry.config }, shortPath(entry.config)), [entry.reason, entry.note].filter(Boolean).map((text) => el("p", { class: "muted" }, text))],
      `${duration(entry.used_s)} of ${duration(entry.budget_s)}`, entry.start,
      entry.gain ? [ratio(entry.gain[0]), el("small", { class: "below" }, interval(entry.gain[1], entry.gain[2]))] : "–", ...(canAct ? [buttons(entry)] : [])])), more(queue.left_out)];
}

function advice(one, act) {
  const [value, low, high] = one.ratio;
  return el("article", {},
    el("h3", {}, el("span", { title: one.config }, shortPath(one.config)), " ", tag(one.state === "applied" ? "good" : "news", one.state === "applied" ? `● applied ${localTime(one.applied_utc)}` : "◆ not applied"),
      " ", el("small", {}, `recommendation ${one.id}, ${localTime(one.made_utc)}`)),
    el("p", {}, el("b", {}, ratio(value)), ` the speed of the searched config (95 % interval ${interval(low, high)})`),
    table("Changes, and the gain from each", [["key", "wide"], ["old", "number"], ["new", "number"], ["gain", "number"], ["effect", "means"]],
      one.changes.map((change) => [el("code", {}, change.path), change.old, change.new, change.worth ? `${ratio(change.worth[0])} (${interval(change.worth[1], change.worth[2])})` : "not measured separately", change.label])),
    el("pre", { class: "diff", tabindex: 0, "data-key": `diff ${one.id}`, "aria-label": "Change to the config as a diff" }, one.diff.split("\n").map((line) => el("span", { class: line[0] === "+" ? "plus" : line[0] === "-" ? "minus" : "" }, `${line}\n`))),
    one.may_learn_more_slowly ? el("p", { class: "trouble" }, "It changes the training, and no race has shown that it converges as fast.") : null,
    el("ul", { class: "why" }, one.why.map((sentence) => el("li", {}, sentence))),
    act && one.state === "given" && !one.may_learn_more_slowly ? el("button", { type: "button", "data-key": `apply ${one.id}`, "aria-label": `apply recommendation ${one.id}`, click: () => act("apply", one.id, `apply recommendation ${one.id} to ${one.config}`, true) }, "apply")
      : el("p", { class: "muted" }, one.state === "applied" ? "To revert it: " : "To apply it: ", command(one.command)));
}

export const adviceSection = (advices, act) => (advices.advice.length
  ? [advice(advices.advice[0], act), advices.advice.slice(1).map((one) => folded(`advice ${one.id}`, `${ratio(one.ratio[0])} for ${shortPath(one.config)}, ${one.state}`, advice(one, act))), more(advices.left_out)]
  : [empty("No search has found anything better yet.")]);

export const daemonSection = (daemon) => [
  daemon.trouble ? el("p", { class: "trouble" }, `Problem: ${daemon.trouble}`) : null,
  el("dl", { class: "facts" }, fact("machine", `${daemon.host}: ${daemon.machine}`), fact("problem", daemon.trouble ?? "none"), fact("version", daemon.autotune),
    fact("process", `${daemon.pid}, running for `, running(daemon.started_utc)), fact("hosted by", daemon.hosted)),
];

function searchLine(search) {
  const phase = search.phase === "confirming" ? "Confirming" : "Searching";
  const head = `${phase} ${shortPath(search.config)}, budget ${duration(search.budget_s)}: `, trials = count(search.trials, "trial", "trials");
  if (search.best_changes === null || !search.best.length) return `${head}${trials}, nothing better than today's config yet.`;
  return `${head}${ratio(search.best.at(-1)[1])} the current speed after ${trials}, with ${search.best_changes}.`;
}

function endLine(search) {
  const best = search.best.length && search.best_changes ? `, ${ratio(search.best.at(-1)[1])} with ${search.best_changes}` : "";
  return `The search has ended: ${VERDICTS[search.verdict] ?? "no verdict"}${search.verdict === "better" ? best : ""}.`;
}

/** The headline as [tone, text], by priority: alarms, problems, the running search, waiting entries, trainings, recommendations. */
export function headline(state) {
  const alarms = (state.trainings?.alarms ?? []).filter((one) => one.is_open), trouble = state.daemon?.trouble ?? state.queue?.trouble;
  const waiting = (state.queue?.entries ?? []).filter((entry) => ["waiting", "held", "paused"].includes(entry.state));
  const trainings = state.trainings?.trainings.length, given = state.advice?.advice.find((one) => one.state === "given");
  if (alarms.length) return ["alarm", `${alarms[0].message}${alarms.length > 1 ? ` (and ${alarms.length - 1} more)` : ""}`];
  if (trouble) return ["trouble", `Problem: ${trouble}`];
  if (state.search?.is_running) return ["work", searchLine(state.search)];
  if (!state.daemon) return ["news", endLine(state.search)];
  if (waiting.length) {
    const why = waiting[0].reason ? `; entry ${waiting[0].number}: ${waiting[0].reason}` : "";
    return ["work", `${count(waiting.length, "search", "searches")} in the queue${why}.`];
  }
  if (trainings) return ["quiet", `${count(trainings, "training", "trainings")} running, no alarm. The queue is empty.`];
  if (given) return ["news", `Recommendation for ${shortPath(given.config)}: ${ratio(given.ratio[0])} (${interval(given.ratio[1], given.ratio[2])}), not applied yet.`];
  return ["quiet", "Nothing running, nothing queued."];
}
