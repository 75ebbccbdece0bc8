// Formatting of numbers and times; null is "unknown".

export const UNKNOWN = "unknown";
let ahead = 0; // daemon's clock minus this one's, in ms

export const setClock = (utc) => { ahead = Date.parse(utc) - Date.now(); };
export const known = (value, text) => (value === null || value === undefined ? UNKNOWN : text(value));
export const percent = (share) => known(share, (value) => `${Math.round(100 * value)} %`);
export const gib = (bytes) => known(bytes, (value) => `${(value / 2 ** 30).toFixed(1)} GiB`);
export const ratio = (value) => known(value, (one) => `${one.toFixed(2)}x`);
export const interval = (low, high) => `${low.toFixed(2)}-${high.toFixed(2)}`;
export const speed = (value) => known(value, (one) => `${Number(one.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 2 })}/s`);
export const count = (value, one, more) => `${value.toLocaleString("en")} ${value === 1 ? one : more}`;
export const shortPath = (path) => path.split("/").slice(-2).join("/");

const two = (value) => String(value).padStart(2, "0");

export function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)}s`;
  if (seconds < 600) return `${Math.floor(seconds / 60)}m${seconds % 60 >= 1 ? `${two(Math.floor(seconds % 60))}s` : ""}`;
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60);
  if (minutes < 60) return `${minutes}m`;
  return hours < 48 ? `${hours}h${minutes % 60 ? `${two(minutes % 60)}m` : ""}` : `${Math.round(hours / 24)}d`;
}

export function since(utc) {
  const passed = (Date.now() + ahead - Date.parse(utc)) / 1000;
  return Number.isNaN(passed) ? UNKNOWN : duration(Math.max(0, passed));
}

export function localTime(utc) {
  const then = new Date(utc);
  if (Number.isNaN(then.getTime())) return UNKNOWN;
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date(Date.now() + ahead).toDateString() ? time : `${then.toLocaleDateString("en-CA")} ${time}`;
}
