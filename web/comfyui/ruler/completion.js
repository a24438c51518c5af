/**
 * Offers names of embeddings and LoRAs while a prompt is typed. Where another pack shows a list, ours stays closed.
 *
 * For a screen reader the box stays a text box, as HTML allows a box of several lines no other role; the chosen name is
 * its active descendant, and the number of names is announced.
 */

import { replaceText } from "./boxes.js";
import { dress, parseColor, readable, themeOf } from "./colors.js";
import { make } from "./elements.js";
import { say } from "./language.js";
import { namesAt } from "./names.js";
import { counted } from "./words.js";

/** Milliseconds after a key until a list is opened: lists of other packs appear first. */
const DELAY = 200;
/** The lists of ComfyUI-Custom-Scripts and Autocomplete-Plus, and the tags that the latter also shows. */
const OTHERS = ".pysssss-autocomplete, #autocomplete-plus-root, #related-tags-root";
const ID = "weighted-clip-names";
const GAP = 3;
/** Styles that affect the position of a box's text. */
const LOOKS = [
  ...["font", "lineHeight", "letterSpacing", "wordSpacing", "textIndent", "textAlign", "tabSize", "direction"],
  ...["boxSizing", "paddingTop", "paddingRight", "paddingBottom", "paddingLeft"],
  ...["borderTopWidth", "borderRightWidth", "borderBottomWidth", "borderLeftWidth"],
];

/**
 * Offer names in prompt boxes.
 * @param {(area: HTMLTextAreaElement) => {box: import("./boxes.js").Box, syntax: string, chunking?: string} | null} boxOf
 *   Says of an element whether it is a prompt box of ours, and how its prompt is read.
 * @param {() => Promise<{embeddings: string[], loras: string[]}>} lists Gives the names.
 * @param {{isOn: () => boolean, changed: () => void}} host Whether there shall be lists; what to call after a change.
 */
export function addCompletion(boxOf, lists, host) {
  let timer = 0;
  let isWriting = false;
  /** The list that is shown. */
  let open = null;
  const status = make("div", "wcr-unseen", "", { role: "status" });

  function close() {
    clearTimeout(timer);
    if (!open) return;
    for (const name of ["aria-autocomplete", "aria-controls", "aria-activedescendant"]) open.area.removeAttribute(name);
    open.element.remove();
    status.remove();
    open = null;
  }

  async function update(area) {
    const names = await lists();
    const { value, selectionStart: caret, selectionEnd } = area;
    const isHere = document.activeElement === area && caret === selectionEnd && !area.readOnly;
    const place = isHere && host.isOn() && !isOtherOpen() ? boxOf(area) : null;
    const found = place && namesAt(value, caret, place, names);
    close();
    if (!found) return;
    const element = make("div", "", "", { id: ID, role: "listbox", ariaLabel: say("Embeddings and LoRAs") });
    element.append(...found.choices.map(option));
    document.body.append(element, status);
    element.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the box keeps the focus
      event.stopPropagation();
    });
    element.addEventListener("click", ({ target }) => {
      const row = target.closest("[role=option]");
      if (row) insert([...element.children].indexOf(row));
    });
    open = { area, place, found, element, value, caret: caretOf(area), chosen: -1 };
    area.setAttribute("aria-autocomplete", "list");
    area.setAttribute("aria-controls", ID);
    status.textContent = say(counted(found.choices.length, "name"));
    dressAsMenu(element);
    if (found.isAsked) choose(0);
    follow(open);
  }

  /** Keep a list at the caret until it closes. */
  function follow(list) {
    if (list !== open) return;
    const { area, value } = list;
    // another workflow may have taken over the box
    const isSame = area.isConnected && document.activeElement === area && area.value === value;
    if (!isSame || !host.isOn() || isOtherOpen()) return close();
    stand(list);
    requestAnimationFrame(() => follow(list));
  }

  function choose(index) {
    const options = [...open.element.children];
    open.chosen = (index + options.length) % options.length;
    for (const [i, one] of options.entries()) one.ariaSelected = String(i === open.chosen);
    options[open.chosen].scrollIntoView({ block: "nearest" });
    open.area.setAttribute("aria-activedescendant", options[open.chosen].id);
  }

  function insert(index) {
    const { place, area, found } = open;
    const { text } = found.choices[index];
    close();
    isWriting = true;
    replaceText(place.box, { ...found, text });
    isWriting = false;
    const caret = found.start + text.length;
    area.setSelectionRange(caret, caret);
    host.changed();
  }

  function onKey(event) {
    if (!open || event.composedPath()[0] !== open.area || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const { chosen } = open;
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen < 0 ? -1 : chosen - 1);
    else if (event.key === "Escape") close();
    else if (chosen >= 0 && (event.key === "Enter" || event.key === "Tab")) insert(chosen);
    else {
      if (event.key.length > 1 && event.key !== "Backspace" && event.key !== "Delete") close();
      return;
    }
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  function onInput(event) {
    const area = event.composedPath()[0];
    if (isWriting || area?.tagName !== "TEXTAREA") return;
    clearTimeout(timer);
    const isTyped = /^(insert(Text|CompositionText)|deleteContent)/.test(event.inputType);
    if (!isTyped) close();
    else if (open) update(area);
    else timer = setTimeout(() => update(area), DELAY);
  }

  window.addEventListener("keydown", onKey, { capture: true });
  window.addEventListener("input", onInput, { capture: true });
  window.addEventListener("focusout", close);
  window.addEventListener("pointerdown", (event) => open?.element.contains(event.target) || close(), { capture: true });
}

const isOtherOpen = () => [...document.querySelectorAll(OTHERS)].some((one) => one.checkVisibility());

function option({ name, kind }, index) {
  const row = make("div", "", "", { id: `${ID}-${index}`, role: "option", ariaSelected: "false" });
  row.append(make("span", "", name), make("small", "", kind));
  return row;
}

/** The colours of ComfyUI's menus. */
function dressAsMenu(element) {
  const page = getComputedStyle(document.body);
  const color = (name, other) => parseColor(page.getPropertyValue(name).trim()) ?? other;
  const theme = themeOf(color("--comfy-menu-bg", [53, 53, 53]), color("--input-text", [221, 221, 221]));
  const colors = { ...theme, chosen: readable(theme.accent, theme.text) };
  dress(element, colors, ["background", "text", "muted", "line", "accent", "chosen"]);
}

/** Below the caret or, if there is no room, above it. */
function stand({ area, element, caret }) {
  const around = area.getBoundingClientRect();
  const scale = around.width / area.offsetWidth || 1;
  const { width, height } = element.getBoundingClientRect();
  const middle = (least, value, most) => Math.max(least, Math.min(value, most));
  const left = around.left + (caret.left - area.scrollLeft) * scale;
  const top = middle(around.top, around.top + (caret.top - area.scrollTop) * scale, around.bottom);
  const below = Math.min(top + caret.height * scale, around.bottom) + GAP;
  element.style.left = `${middle(GAP, left, innerWidth - width - GAP)}px`;
  element.style.top = `${below + height <= innerHeight ? below : Math.max(GAP, top - height - GAP)}px`;
}

/** Position of the caret in a box, in pixels of the box, measured in an invisible copy. */
function caretOf(area) {
  const style = getComputedStyle(area);
  const copy = make("div", "", area.value.slice(0, area.selectionEnd));
  for (const name of LOOKS) copy.style[name] = style[name];
  copy.style.cssText += "position: absolute; visibility: hidden; white-space: pre-wrap; overflow-wrap: break-word";
  copy.style.borderStyle = "solid";
  copy.style.width = `${area.offsetWidth}px`;
  const mark = copy.appendChild(make("span", "", "\u200b"));
  document.body.append(copy);
  const { offsetLeft: left, offsetTop: top, offsetHeight: height } = mark;
  copy.remove();
  return { left, top, height };
}
