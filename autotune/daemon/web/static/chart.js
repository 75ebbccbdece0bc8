// SVG plots: timelines, points with intervals, bars. Each has a text or table with the same content.

import { svg } from "./dom.js";
import { duration, interval, ratio } from "./words.js";

/** The last hour of a quantity, with gaps for unknown values. */
export function hourLine(values, most, label, stretches = 120) {
  const top = most || Math.max(1e-9, ...values.filter((value) => value !== null)) * 1.1;
  const parts = [];
  values.forEach((value, place) => {
    if (value === null) return;
    const x = 200 * (1 - (values.length - place - 0.5) / stretches), y = 31 - 29 * Math.min(1, value / top);
    const begins = place === 0 || values[place - 1] === null;
    const alone = begins && (place === values.length - 1 || values[place + 1] === null);
    parts.push(`${begins ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}${alone ? "h1.5" : ""}`);
  });
  return svg("svg", { class: "hour", viewBox: "0 0 200 32", preserveAspectRatio: "none", role: "img", "aria-label": label },
    [50, 100, 150].map((x) => svg("path", { class: "grid", d: `M${x} 0V32` })),
    svg("path", { class: "grid", d: "M0 31.5H200" }), svg("path", { class: "line", d: parts.join("") }));
}

/** A bar from 0 to 1; `band` is the expected range of its end. */
export function bar(share, label, { band = null, kind = "" } = {}) {
  const x = (value) => 100 * Math.max(0, Math.min(1, value));
  return svg("svg", { class: `meter ${kind}`, viewBox: "0 0 100 12", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "ground", width: 100, height: 12 }),
    band && svg("rect", { class: "band", x: x(band[0]), width: x(band[1]) - x(band[0]), height: 12 }),
    share !== null && svg("rect", { class: "value", y: 3, width: Math.max(0.5, x(share)), height: 6 }));
}

/** A point with its interval, on a scale `[from, to]` of ln ratio that the rows of a table share. */
export function intervalMark(point, [from, to]) {
  const x = (value) => 4 + 192 * ((Math.log(value) - from) / (to - from || 1));
  const label = `${ratio(point.ratio)}, interval ${interval(point.low, point.high)}`;
  return svg("svg", { class: "interval", viewBox: "0 0 200 16", role: "img", "aria-label": label },
    svg("path", { class: "today", d: `M${x(1)} 0V16` }),
    svg("path", { class: "whisker", d: `M${x(point.low)} 8H${x(point.high)}M${x(point.low)} 5v6M${x(point.high)} 5v6` }),
    shape(point.is_today ? "baseline" : "repeat", x(point.ratio), 8));
}

/** The mark of a trial, shaped by its purpose. */
export function shape(purpose, x, y) {
  const at = `translate(${x.toFixed(1)} ${y.toFixed(1)})`;
  if (purpose === "failed") return svg("path", { class: "mark failed", transform: at, d: "M-3.5-3.5L3.5 3.5M-3.5 3.5L3.5-3.5" });
  if (purpose === "baseline") return svg("rect", { class: "mark baseline", transform: at, x: -3.5, y: -3.5, width: 7, height: 7 });
  if (purpose === "confirm") return svg("path", { class: "mark confirm", transform: at, d: "M0-4.5L4.5 0L0 4.5L-4.5 0Z" });
  if (purpose === "take back") return svg("path", { class: "mark explore", transform: at, d: "M0-4.2L4.2 3.4H-4.2Z" });
  return svg("circle", { class: `mark ${purpose === "repeat" ? "repeat" : "explore"}`, transform: at, r: 3.6 });
}

/** Effects of a knob's values, with the other knobs as in the kept point, on the scale of all knobs. */
export function knobSlice(values, [from, to]) {
  const step = 196 / values.length, x = (place) => 2 + step * (place + 0.5), y = (value) => 30 - 26 * ((Math.log(value) - from) / (to - from || 1));
  const label = values.map((one) => `${one.value}: ${ratio(one.ratio)} (${interval(one.low, one.high)})`).join("; ");
  return svg("svg", { class: "slice", viewBox: "0 0 200 34", role: "img", "aria-label": label },
    svg("path", { class: "today", d: `M0 ${y(1)}H200` }),
    values.map((one, place) => [svg("path", { class: "whisker", d: `M${x(place)} ${y(one.low)}V${y(one.high)}` }), shape(one.is_kept ? "confirm" : "explore", x(place), y(one.ratio))]));
}

const TICKS = [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9], [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 9, 9.5]];

/** At most 7 round numbers between two logarithms. */
function ticks(from, to) {
  const inside = TICKS.map((digits) => [0.1, 1, 10, 100].flatMap((power) => digits.map((digit) => Number((power * digit).toPrecision(3))))
    .filter((value) => Math.log(value) >= from && Math.log(value) <= to));
  return inside.findLast((some) => some.length <= 7) ?? [1];
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];

/** Times at even steps up to the end, at most `most` steps. */
function timeTicks(end, most) {
  const step = STEPS_S.find((one) => end / one <= most) ?? end / most;
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, place) => place * step);
}

/** Best speed relative to the baseline over search time, with the trials. */
export function searchChart(search, width) {
  const height = width < 500 ? 200 : 240, left = 40, right = 8, top = 10, bottom = 40;
  const measured = search.dots.filter((dot) => dot[2] !== null), failures = search.dots.filter((dot) => dot[4]);
  const values = [1, ...measured.map((dot) => dot[2]), ...search.best.map((step) => step[1])].map(Math.log);
  const pad = Math.max(0.05, 0.08 * (Math.max(...values) - Math.min(...values)));
  const from = Math.min(...values) - pad, to = Math.max(...values) + pad, end = Math.max(search.t_s, 1);
  const x = (t) => left + (width - left - right) * (t / end);
  const y = (value) => height - bottom - (height - bottom - top) * ((Math.log(value) - from) / (to - from));
  const label = `Best speed relative to today's config over search time: ${search.best.length ? ratio(search.best.at(-1)[1]) : "none yet"} `
    + `after ${duration(search.t_s)}, ${search.trials} trials. The tables below contain the data.`;
  const steps = search.best.map(([t, value], place) => (place ? `H${x(t)}V${y(value)}` : `M${x(t)} ${y(value)}`)).join("");
  const whiskers = measured.length <= 60 && search.spread ? measured : [];
  return svg("svg", { class: "search", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ticks(from, to).map((step) => [
      svg("path", { class: step === 1 ? "today" : "grid", d: `M${left} ${y(step)}H${width - right}` }),
      svg("text", { x: left - 6, y: y(step) + 4, "text-anchor": "end" }, `${step}x`)]),
    timeTicks(end, width / 90).map((t) => svg("text", { x: x(t), y: height - bottom + 32, "text-anchor": x(t) > width - 24 ? "end" : "middle" }, duration(t))),
    search.starts_s.slice(1).map((t) => svg("path", { class: "start", d: `M${x(t)} ${top}V${height - bottom}` })),
    whiskers.map((dot) => svg("path", { class: "whisker", d: `M${x(dot[1])} ${y(Math.max(Math.exp(from), dot[2] * Math.exp(-search.spread)))}V${y(Math.min(Math.exp(to), dot[2] * Math.exp(search.spread)))}` })),
    svg("g", { class: measured.length > 150 ? "many" : null }, measured.map((dot) => shape(dot[3], x(dot[1]), y(dot[2])))),
    steps && svg("path", { class: "best", d: `${steps}H${x(end)}` }),
    failures.map((dot) => shape("failed", x(dot[1]), height - bottom + 10)));
}
