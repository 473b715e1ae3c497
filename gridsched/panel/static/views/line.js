// One decision as a line for a person, as `gridsched events` prints it.

import { h } from "/panel/dom.js";
import { clock } from "/panel/format.js";

const SHOWN = new Set(["seq", "time", "event", "class", "kind", "step", "steps", "model", "device"]);

/** What stands behind the time. @param {any} line */
export function words(line) {
  if (line.event === "gap") return `: ${line.lost ?? "some"} lines are kept no more, and were not read`;
  const said = ["class", "kind"].filter((key) => key in line && !(key === "kind" && "step" in line)).map((key) => line[key]);
  if ("step" in line) said.push(`step ${line.step}/${line.steps ?? "?"}`);
  if ("model" in line) said.push(`-> ${line.model}`);
  if ("device" in line) said.push(`on ${line.device}`);
  for (const [key, value] of Object.entries(line)) if (!SHOWN.has(key)) said.push(`${key}=${plain(value)}`);
  return said.join(" ");
}

/** @param {unknown} value */
function plain(value) {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toFixed(3)));
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** The line as an element. @param {any} line */
export function lineElement(line) {
  const known = ["interactive", "background", "batch"].includes(line.class);
  return h("p", { class: known ? `class-${line.class}` : null }, h("span", { class: "time" }, clock(line.time)), " ", h("b", {}, line.event), " ", words(line));
}
