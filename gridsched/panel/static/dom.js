// How elements are made and kept up to date: of texts and attributes, never of markup. Nothing else in the panel creates
// an element.

const SVG = "http://www.w3.org/2000/svg";
const ADDRESSES = new Set(["href", "src"]);
const OURS = /^(#|\/(?![/\\])|data:image\/|blob:)/;

/**
 * An element. `on…` attributes are listeners, `css` sets properties of its style, `class` and `data-…` as in HTML; null,
 * undefined and false are left out. Children are elements or texts; lists of them are taken apart.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  return /** @type {HTMLElement} */ (fill(document.createElement(tag), attributes, children));
}

/**
 * The same for SVG.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {SVGElement}
 */
export function s(tag, attributes = {}, ...children) {
  return /** @type {SVGElement} */ (fill(document.createElementNS(SVG, tag), attributes, children));
}

/**
 * @param {Element} element
 * @param {Record<string, any>} attributes
 * @param {any[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value !== "function") throw new TypeError(`${name} takes a function`);
      element.addEventListener(name.slice(2), value);
    } else if (name === "css") {
      styled(/** @type {HTMLElement} */ (element), value);
    } else {
      if (ADDRESSES.has(name) && !OURS.test(String(value))) throw new TypeError(`${name} leads out of the panel`);
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...flat(children));
  return element;
}

/** @param {any[]} children */
function flat(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
}

/**
 * Put these in the place of what an element holds.
 * @param {Element} element
 * @param {...any} children
 */
export function put(element, ...children) {
  element.replaceChildren(...flat(children));
}

/**
 * Set properties of an element's style: attributes of that name are not allowed by the policy.
 * @param {HTMLElement|SVGElement} element
 * @param {Record<string, string|number>} properties
 */
export function styled(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (element.style.getPropertyValue(name) !== String(value)) element.style.setProperty(name, String(value));
  }
}

/**
 * The text of an element, changed only where it is another: what is selected or read stays.
 * @param {Element} element
 * @param {string|number} text
 */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = String(text);
}

/**
 * An attribute, likewise; null or false takes it away.
 * @param {Element} element
 * @param {string} name
 * @param {string|number|boolean|null|undefined} value
 */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value === true ? "" : value)) element.setAttribute(name, value === true ? "" : String(value));
}

/**
 * One element of a list that is kept.
 * @template T
 * @typedef {{element: Element, update: (item: T) => void}} Row
 */

/**
 * A list of elements that are kept as long as their items are there, so that focus and selection stay where they are.
 * Gives what takes the items of the moment.
 * @template T
 * @param {Element} parent
 * @param {(item: T) => string} nameOf
 * @param {(item: T) => Row<T>} make
 * @returns {(items: T[]) => void}
 */
export function rows(parent, nameOf, make) {
  /** @type {Map<string, Row<T>>} */
  const kept = new Map();
  return (items) => {
    const names = new Set(items.map(nameOf));
    for (const [name, row] of kept) {
      if (names.has(name)) continue;
      row.element.remove();
      kept.delete(name);
    }
    let at = parent.firstElementChild;
    for (const item of items) {
      let row = kept.get(nameOf(item));
      if (!row) {
        row = make(item);
        kept.set(nameOf(item), row);
      }
      row.update(item);
      if (row.element === at) at = at.nextElementSibling;
      else parent.insertBefore(row.element, at);
    }
  };
}
