/** Elements of the ruler. */

/** Pixels between an element and one that it stands at. */
const GAP = 6;

/** Make an element with a class, a text and properties. */
export function make(tag, className = "", text = "", properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Put an element on the page below another one, or above it if there is no room. */
export function standBelow(element, other) {
  document.body.append(element);
  const around = other.getBoundingClientRect();
  const { width, height } = element.getBoundingClientRect();
  const left = Math.max(GAP, Math.min(around.left, innerWidth - width - GAP));
  const below = around.bottom + GAP;
  const top = below + height <= innerHeight ? below : around.top - GAP - height;
  Object.assign(element.style, { left: `${left}px`, top: `${Math.max(GAP, top)}px` });
}

/** Whether a text could be copied. Browsers have `navigator.clipboard` on this computer or by https alone. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.body.appendChild(make("textarea", "", "", { value: text }));
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}
