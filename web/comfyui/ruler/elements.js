/** Elements of the ruler. */

/** Make an element with a class, a text and properties. */
export function make(tag, className = "", text = "", properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
