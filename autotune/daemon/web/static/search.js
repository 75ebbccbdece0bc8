// Search section: best values so far, running trial, and trials.

import { bar, intervalMark, knobSlice, searchChart, shape } from "./chart.js";
import { command, el, folded, svg, table } from "./dom.js";
import { count, duration, interval, percent, ratio, shortPath, speed, since } from "./words.js";

const LEGEND = [["baseline", "current config"], ["explore", "new point"], ["repeat", "repeated point"], ["take back", "changes dropped"], ["confirm", "confirmation pair"], ["failed", "failed"]];
export const VERDICTS = { better: "better than today's config", steadier: "as fast as today's config, and steadier", no_change: "nothing better than today's config", not_confirmed: "a candidate is not confirmed", no_baseline: "today's config has no measurement" };

export const fact = (name, ...value) => el("div", { class: "fact" }, el("dt", {}, name), el("dd", {}, value));
export const running = (utc) => el("span", { "data-since": utc }, since(utc));

const legend = (search) => el("p", { class: "legend" },
  LEGEND.filter(([kind]) => search.dots.some((dot) => (kind === "failed" ? dot[4] : dot[3] === kind && dot[2] !== null)))
    .map(([kind, text]) => el("span", {}, svg("svg", { viewBox: "-6 -6 12 12", "aria-hidden": "true" }, shape(kind, 0, 0)), text)),
  el("span", {}, svg("svg", { viewBox: "-6 -6 12 12", "aria-hidden": "true" }, svg("path", { class: "best", d: "M-6 0H6" })), "best so far"));

function points(search) {
  if (!search.points.length) return null;
  const scale = [Math.log(Math.min(1, ...search.points.map((point) => point.low))), Math.log(Math.max(1, ...search.points.map((point) => point.high)))];
  return [el("h3", {}, "Fastest points"), table("Fastest points: speed relative to today's config, with the 95 % interval",
    [["values", "wide"], ["speed", "number"], ["95 % interval", "number"], ["trials", "number"], ["plot", "picture"]],
    search.points.map((point) => [point.is_today ? "current config" : point.changes, ratio(point.ratio), interval(point.low, point.high),
      String(point.trials), intervalMark(point, scale)]))];
}

function knobs(search) {
  if (!search.knobs?.length) return null;
  const all = search.knobs.flatMap((knob) => knob.values);
  const scale = [Math.log(Math.min(1, ...all.map((one) => one.low))), Math.log(Math.max(1, ...all.map((one) => one.high)))];
  const values = (knob) => knob.values.map((one) => (one.is_kept ? `${one.value} (kept)` : `${one.value}: ${ratio(one.ratio)}`)).join(", ");
  return [el("h3", {}, "Knob effects"), table("Effect of each knob alone, by a model of all trials: speed with each value relative to the kept value",
    [["knob", ""], ["spread", "number"], ["values", "wide"], ["plot", "picture"]],
    search.knobs.map((knob) => [knob.knob, ratio(knob.spread), values(knob), knobSlice(knob.values, scale)]))];
}

function trialRow(trial) {
  const words = [trial.ending, trial.validity === "good" || trial.validity === "unmeasured" ? "" : trial.validity].filter(Boolean).join(", ");
  const ending = trial.stderr || trial.detail
    ? [el("span", {}, words), trial.detail && el("span", { class: "muted" }, ` ${trial.detail}`),
      trial.stderr && folded(`stderr ${trial.number}`, "stderr", el("pre", {}, trial.stderr))]
    : words;
  const cell = (value, text) => (value === null ? "–" : text(value));
  return [String(trial.number), trial.purpose, trial.changes, cell(trial.samples_per_s, speed), cell(trial.ratio, ratio),
    cell(trial.stall_fraction, percent), cell(trial.gpu_utilization, percent), cell(trial.duration_s, duration), ending];
}

export function searchSection(search, width) {
  if (!search) return [el("p", { class: "empty" }, "No search has started yet. In a terminal: ", el("code", {}, "autotune queue add --config config.yaml --budget 30m"))];
  const now = search.now;
  const verdict = search.is_running ? null : VERDICTS[search.verdict] ?? "no verdict";
  return [
    el("dl", { class: "facts" },
      fact("config", el("span", { title: search.config }, shortPath(search.config)), search.entry === null ? null : ` (queue ${search.entry})`),
      fact("best", search.best.length && search.best_changes ? [el("b", {}, ratio(search.best.at(-1)[1])), ` ${search.best_changes}`] : "nothing better yet"),
      fact("budget", `${duration(search.used_s)} of ${duration(search.budget_s)} `, bar(search.used_s / search.budget_s, `${percent(search.used_s / search.budget_s)} of the budget used`)),
      fact("trials", `${search.trials.toLocaleString("en")}: ${Object.entries(search.endings).map(([ending, many]) => `${many.toLocaleString("en")} ${ending}`).join(", ") || "none yet"}`),
      search.phase && fact("phase", `${search.phase}: ${search.why}`),
      verdict && fact("answer", verdict),
      search.entry === null && (search.verdict === "better" || search.verdict === "steadier") && fact("apply", command(`autotune apply --config ${search.config}`)),
      search.is_running && fact("now", now ? [`trial ${now.number}, ${now.purpose}: ${now.changes}, for `, running(now.started_utc)] : "between trials")),
    search.trials ? [el("h3", {}, "Speed relative to today's config"), searchChart(search, width), legend(search)]
      : el("p", { class: "empty" }, "No trial has ended yet."),
    points(search),
    knobs(search),
    search.best.length ? folded("best steps", "Best speed over time (table)", table("Best speed relative to today's config by search time",
      [["search time", "number"], ["best so far", "number"]], search.best.map(([t, value]) => [duration(t), ratio(value)]))) : null,
    search.recent.length ? [el("h3", {}, "Last trials"), table("The last trials, newest first",
      [["trial", "number"], ["purpose", ""], ["changes", "wide"], ["samples", "number"], ["speed", "number"], ["stalls", "number"], ["GPU", "number"], ["duration", "number"], ["ending", "ending"]],
      search.recent.map(trialRow))] : null,
    search.remarks.length ? folded("remarks", count(search.remarks.length, "remark", "remarks"), el("ul", {}, search.remarks.map((text) => el("li", {}, text)))) : null,
    el("p", { class: "muted" }, `Study ${search.study}${search.combinations ? `, ${search.combinations.toLocaleString("en")} combinations` : ""}. Score: ${search.measures}.`),
  ];
}
