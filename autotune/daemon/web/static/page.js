// The page: loads the state, follows changes, and shows when the daemon is gone. All pages of a browser share one stream,
// because browsers open only six connections per host.

import { replaceContent } from "./dom.js";
import { searchSection } from "./search.js";
import { adviceSection, daemonSection, gpusSection, headline, queueSection, trainingsSection } from "./sections.js";
import { localTime, setClock, since } from "./words.js";

const QUIET_MS = 30000, SLOWEST_MS = 5000;
const place = (id) => document.getElementById(id);
const others = new BroadcastChannel("autotune");
let state = null, shown = {}, heard = 0, failures = 0, isAway = false, announced = new Set();

function render(isAll) {
  const width = Math.max(280, Math.floor(place("search").clientWidth) - 2);
  const sections = { search: () => searchSection(state.search, width), gpus: () => gpusSection(state.gpus), trainings: () => trainingsSection(state.trainings),
    queue: () => queueSection(state.queue, state.actions ? act : null), advice: () => adviceSection(state.advice, state.actions ? act : null), daemon: () => daemonSection(state.daemon) };
  for (const [name, make] of Object.entries(sections)) {
    place(name).hidden = !(name in state);  // absent on the page of one search
    if (place(name).hidden) continue;
    const content = JSON.stringify(state[name]);
    if (content === shown[name] && !(isAll && name === "search")) continue;
    shown[name] = content;
    replaceContent(place(name).querySelector(":scope > div"), make());
  }
}

function show(document_) {
  state = document_;
  [heard, failures] = [Date.now(), 0];
  setClock(state.utc);
  connection("live", "live");
  const [tone, text] = headline(state);
  if (place("headline").textContent !== text) place("headline").textContent = text;
  place("headline").className = tone;
  place("where").textContent = `${state.host}, ${localTime(state.utc)}`;
  document.body.classList.toggle("alone", !("daemon" in state));
  document.title = `${text} – autotune`;
  render(false);
  const opened = (state.trainings?.alarms ?? []).filter((alarm) => alarm.is_open);
  const fresh = opened.filter((alarm) => !announced.has(alarm.key));
  announced = new Set(opened.map((alarm) => alarm.key));
  if (fresh.length) place("said").textContent = `Alarm: ${fresh.map((alarm) => alarm.message).join(" ")}`;
}

function connection(kind, text) {
  isAway = kind === "away";
  document.body.classList.toggle("stale", isAway);
  place("connection").className = kind;
  if (place("connection").textContent !== text) place("connection").textContent = text;
}

/** Whether this is the page of one search that has ended, so that the server is gone for good. */
const hasEnded = () => state !== null && !("daemon" in state) && !state.search.is_running;

function away(why) {
  const last = state ? ` Showing data from ${localTime(state.utc)}.` : "";
  if (hasEnded()) connection("ended", "ended");
  else if (state && !("daemon" in state)) connection("away", `The search's process has ended.${last}`);
  else if (why === "logged out") connection("away", `Logged out; log in again with \`autotune daemon url\` in a terminal.${last}`);
  else connection("away", `The daemon does not answer; retrying.${last}`);
}

/** Loads the state once; returns why that failed, null on success. */
async function load() {
  let why = "gone";
  try {
    const response = await fetch("/api/state", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (response.ok) return show(await response.json()), null;
    if (response.status === 401) why = "logged out";
  } catch {
    // the daemon is gone, or hangs
  }
  away(why);
  return why;
}

const pause = () => new Promise((done) => setTimeout(done, Math.min(SLOWEST_MS, 500 * 2 ** failures++)));

/** Follows the stream forever, for all pages of this browser. */
async function lead() {
  for (;;) {
    const why = await load();
    others.postMessage(why ? { why } : { state });
    if (why && hasEnded()) return;
    if (!why) {
      await new Promise((ended) => {
        const stream = new EventSource("/api/events");
        stream.addEventListener("state", (event) => { show(JSON.parse(event.data)); others.postMessage({ state }); });
        stream.addEventListener("error", () => { stream.close(); ended(); });
      });
    }
    await pause();
  }
}

async function act(action, id, what, isAsked) {
  if (isAsked && !window.confirm(`Really ${what}?`)) return;
  const notify = (text) => { place("notice").hidden = false; place("notice").textContent = text; };
  try {
    const response = await fetch("/api/action", { method: "POST", body: JSON.stringify({ action, id }),
      headers: { "Content-Type": "application/json", "X-CSRF-Token": state.csrf ?? "" }, signal: AbortSignal.timeout(30000) });
    const answer = await response.json().catch(() => ({}));
    notify(response.ok ? (action === "apply" ? `Requested: ${what}. The queue shows the result.` : `Done: ${what}.`) : `Not done: ${what}. ${answer.error?.message ?? `The daemon answered ${response.status}.`} ${answer.error?.remedy ?? ""}`);
  } catch {
    notify(`Result unknown: ${what}. The daemon did not answer.`);
  }
}

others.addEventListener("message", ({ data }) => (data.state ? show(data.state) : away(data.why)));
setInterval(() => { for (const one of document.querySelectorAll("[data-since]")) one.textContent = since(one.dataset.since); }, 1000);
setInterval(() => { if (isAway || Date.now() - heard > QUIET_MS) load(); }, QUIET_MS / 6);
let width = 0;
new ResizeObserver(() => { if (state && Math.abs(place("search").clientWidth - width) > 8) { width = place("search").clientWidth; render(true); } }).observe(place("main"));
await load();
if (navigator.locks) navigator.locks.request("autotune stream", lead);
else lead();
