// Devices as bars of memory: our models by tier, what they have not taken yet, what is being freed, others, headroom, free.

import { h, mark, put, rows, say, styled } from "/panel/dom.js";
import { size, span } from "/panel/format.js";

const SAID_FROM = 0.09;
const LEAST_PART = 0.002;
const ENDING = new Set(["draining", "stopping"]);

/**
 * A stretch of a bar, and its share of the whole.
 * @typedef {{name: string, kind: string, label: string, bytes: number, share: number}} Part
 */

/**
 * What a device's memory is taken by, from left to right. What its driver says to be in use beside programs outside is ours;
 * what is reserved beyond that has not been taken yet, by models that load before all others.
 * @param {any} device
 * @param {any[]} instances
 * @returns {Part[]}
 */
export function parts(device, instances) {
  /** @type {Omit<Part, "share">[]} */
  const found = [];
  let unused = Math.max(0, device.reserved_bytes + device.freeing_bytes + device.lost_bytes - Math.max(0, device.used_bytes - device.external_bytes));
  if (unused < device.total_bytes * LEAST_PART) unused = 0;
  let left = unused;
  const here = instances.filter((each) => each.device_bytes[device.name] > 0 && !ENDING.has(each.state) && each.state !== "lost");
  for (const each of [...here].sort((a, b) => Number(b.state === "starting") - Number(a.state === "starting"))) {
    const missing = Math.min(left, each.device_bytes[device.name]);
    left -= missing;
    const state = each.state === "starting" ? "loading" : each.paused ? "paused" : each.tier;
    found.push({ name: `i${each.id}`, kind: each.tier, label: `${each.model} (${state})`, bytes: each.device_bytes[device.name] - missing });
  }
  found.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  for (const each of instances) {
    if (ENDING.has(each.state) && each.device_bytes[device.name] > 0) {
      found.push({ name: `i${each.id}`, kind: "freeing", label: `${each.model}, being freed`, bytes: each.device_bytes[device.name] });
    }
  }
  found.push({ name: "unused", kind: "unused", label: "reserved, not yet taken", bytes: unused - left });
  found.push({ name: "lost", kind: "lost", label: "never given back by a process that is gone", bytes: device.lost_bytes });
  found.push({ name: "others", kind: "others", label: "programs outside", bytes: device.external_bytes });
  const taken = found.reduce((sum, each) => sum + each.bytes, 0);
  found.push({ name: "free", kind: "free", label: "free", bytes: Math.max(0, device.total_bytes - device.headroom_bytes - taken) });
  found.push({ name: "headroom", kind: "headroom", label: "headroom, never planned", bytes: Math.min(device.headroom_bytes, Math.max(0, device.total_bytes - taken)) });
  return found.filter((each) => each.bytes > 0).map((each) => ({ ...each, share: each.bytes / device.total_bytes }));
}

/** @param {any} device */
function tags(device) {
  const found = [];
  if (!device.available) found.push(h("span", { class: "tag bad" }, "does not answer"));
  if (device.lease) {
    const left = device.lease.left_s === null ? "" : `, ${span(device.lease.left_s)} left`;
    found.push(h("span", { class: "tag warn" }, `lease ${device.lease.state}: ${device.lease.owner}${left}`));
  }
  if (device.pressure) found.push(h("span", { class: "tag warn" }, "others press"));
  found.push(h("span", { class: "tag" }, device.mode === "interactive" ? "people chat" : "open to all"));
  return found;
}

/** @param {any} device */
function foreign(device) {
  if (!device.foreign.length) return "";
  return `Outside: ${device.foreign.map((/** @type {any} */ each) => `${each.name} (${each.pid}) ${each.bytes === null ? "" : size(each.bytes)}`.trim()).join(", ")}`;
}

/** A card for a device; `update` takes it and the processes. */
function card() {
  const name = h("h3");
  const marks = h("span", { class: "row last" });
  const bar = h("div", { class: "memory", role: "img" });
  const legend = h("ul", { class: "legend" });
  const note = h("p", { class: "soft" });
  const why = h("p", { class: "bad" });
  /** @type {(items: Part[]) => void} */
  const setBar = rows(bar, (each) => each.name, () => {
    const label = h("b");
    const element = h("span", {}, label);
    return { element, update: (each) => {
      mark(element, "class", `part ${each.kind}`);
      mark(element, "title", `${each.label}: ${size(each.bytes)}`);
      styled(element, { "flex-grow": Math.round(each.bytes / 2 ** 20) });
      say(label, each.share >= SAID_FROM ? each.label : "");
    } };
  });
  /** @type {(items: Part[]) => void} */
  const setLegend = rows(legend, (each) => each.name, () => {
    const swatch = h("span");
    const label = h("span");
    const bytes = h("span", { class: "num" });
    return { element: h("li", {}, swatch, label, bytes), update: (each) => {
      mark(swatch, "class", `part ${each.kind}`);
      say(label, each.label);
      say(bytes, size(each.bytes));
    } };
  });
  const element = h("li", { class: "card" }, h("div", { class: "card-head" }, name, marks), why, bar, legend, note);
  let shown = "";
  return { element, update: (/** @type {{device: any, instances: any[]}} */ { device, instances }) => {
    const found = parts(device, instances);
    const free = found.find((each) => each.name === "free")?.bytes ?? 0;
    say(name, `${device.name} · ${size(device.total_bytes)}, ${size(free)} free`);
    const said = JSON.stringify([device.available, device.lease, device.pressure, device.mode]);
    if (said !== shown) put(marks, tags(device));
    shown = said;
    say(why, device.available ? "" : (device.why ?? "It does not answer."));
    why.hidden = device.available;
    mark(bar, "aria-label", `Memory of ${device.name}: ${found.map((each) => `${each.label} ${size(each.bytes)}`).join(", ")}`);
    setBar(found);
    setLegend(found);
    say(note, foreign(device));
    note.hidden = !device.foreign.length;
  } };
}

/** The devices of a status. Gives what takes one. @param {Element} root */
export function deviceBars(root) {
  const list = h("ul", { class: "cards" });
  const none = h("p", { class: "soft" }, "No device is there to plan with.");
  root.append(list, none);
  /** @type {(items: {device: any, instances: any[]}[]) => void} */
  const set = rows(list, (each) => each.device.name, card);
  return (/** @type {any} */ status) => {
    set(status.devices.map((/** @type {any} */ device) => ({ device, instances: status.instances })));
    none.hidden = status.devices.length > 0;
  };
}
