// Elements of the page. Text is only set as text, so that external text is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "click") element.addEventListener("click", value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return element;
}

export const el = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

/** A table with columns [title, class]; a cell is text, an element, or an array of these. Explicit roles keep the
    semantics when CSS shows rows as lists on narrow pages. */
export function table(caption, columns, rows) {
  const head = columns.map(([title, kind]) => el("th", { scope: "col", role: "columnheader", class: kind }, title));
  const cell = (content, place) => el("td", { role: "cell", class: columns[place][1], "data-label": columns[place][0] }, el("div", {}, content));
  return el("div", { class: "table" }, el("table", { role: "table" },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)),
    el("tbody", { role: "rowgroup" }, rows.map((row) => el("tr", { role: "row" }, row.map(cell))))));
}

/** A command with a copy button. */
export const command = (text) => [el("code", {}, text), " ", el("button", { type: "button", class: "copy", "data-key": `copy ${text}`, "aria-label": `copy ${text}`,
  click: (event) => navigator.clipboard.writeText(text).then(() => { event.target.textContent = "copied"; }) }, "copy")];

/** Collapsible content; `key` preserves its state across updates. */
export const folded = (key, title, ...children) => el("details", { "data-key": key }, el("summary", { "data-key": `${key} title` }, title), children);

/** Replaces the content of a section, preserving open details and the focus. */
export function replaceContent(place, children) {
  const open = new Map([...place.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...children.flat(Infinity).filter(Boolean));
  for (const one of place.querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
  if (focused === undefined) return;
  const again = [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused);
  if (again) again.focus({ preventScroll: true });
}
