/**
 * Weights changed by hand: Ctrl and the arrow keys in a prompt box; arrow keys, wheel and a slider on a chip of the ruler.
 * Weights are written in the syntax of the prompt.
 */

import { areaOf, replaceText } from "./boxes.js";
import { css } from "./colors.js";
import { make, standBelow } from "./elements.js";
import { say } from "./language.js";
import { closeTooltip } from "./tooltip.js";
import { reweighted, weightAt } from "./weights.js";

/** Size of a step, unless set in ComfyUI. */
const STEP = 0.05;
const [LEAST, MOST] = [0, 2];
const CHIP = ".wcr-editable";

/**
 * @typedef {object} Place A stretch of a prompt in some boxes.
 * @property {import("./boxes.js").Box[]} boxes The boxes with that prompt.
 * @property {string} syntax Its syntax.
 * @property {number} [start] Start of the stretch.
 * @property {number} [end] End of the stretch.
 */

/** Change a weight; returns the new start of the weighted text, or null if nothing was changed. */
function change({ boxes, syntax, start, end = start }, by) {
  const found = reweighted(String(boxes[0].widget.value ?? ""), start, end, syntax, by);
  if (!found) return null;
  for (const box of boxes) replaceText(box, found);
  return found.start + found.inside[0];
}

/**
 * Let Ctrl and the arrow keys in prompt boxes change weights in the syntax of their node. ComfyUI does it in its own, for
 * all boxes; of ours it is kept away.
 * @param {(area: HTMLTextAreaElement) => {box: import("./boxes.js").Box, syntax: string} | null} boxOf Says of an
 *   element whether it is a prompt box that a ruler reads, and how its prompt is read.
 * @param {() => number | undefined} step Returns the size of a step.
 */
export function addWeightKeys(boxOf, step) {
  const onKey = (event) => {
    const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const area = event.composedPath()[0];
    if (!sign || !(event.ctrlKey || event.metaKey) || area?.tagName !== "TEXTAREA" || area.readOnly) return;
    const place = boxOf(area);
    if (!place) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const { selectionStart: start, selectionEnd: end } = area;
    const found = reweighted(area.value, start, end, place.syntax, { by: sign * (step() ?? STEP) });
    if (!found) return;
    replaceText(place.box, found);
    const now = areaOf(place.box) ?? area;
    now.setSelectionRange(found.start + found.inside[0], found.start + found.inside[1]);
  };
  window.addEventListener("keydown", onKey, { capture: true });
}

/**
 * Let chips of a ruler change the weights of their words.
 * @param {object} drawing The ruler, as draw.js makes it.
 * @param {(section: number) => Place | null} placeOf Place of a section's text; null if it cannot be changed.
 * @param {{step: () => number | undefined, changed: () => void}} host Size of a step; callback afterwards.
 */
export function addChipWeights(drawing, placeOf, host) {
  const { element } = drawing;
  const chipOf = (event) => event.target.closest?.(CHIP);
  const placed = (chip) => {
    const place = placeOf(Number(chip.dataset.section));
    return place && { ...place, start: Number(chip.dataset.start), end: Number(chip.dataset.start) };
  };
  const step = (chip, sign) => {
    const place = placed(chip);
    const start = place && change(place, { by: sign * (host.step() ?? STEP) });
    if (start === null) return;
    drawing.keepFocus(chip, start);
    host.changed();
  };

  element.addEventListener("keydown", (event) => {
    // ComfyUI undoes. The browser would undo in the prompt box as well, and ComfyUI may take that for one more change.
    if ((event.ctrlKey || event.metaKey) && /^[zy]$/i.test(event.key)) event.preventDefault();
    const chip = chipOf(event);
    if (!chip) return;
    const sign = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (sign) step(chip, sign);
    else if (move) moveFocus(element, chip, move);
    else if (event.key === "Enter" || event.key === " ") openSlider(chip, placed(chip));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  element.addEventListener(
    "wheel",
    (event) => {
      const chip = chipOf(event);
      if (!chip || chip !== document.activeElement || event.ctrlKey || !event.deltaY) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      step(chip, event.deltaY < 0 ? 1 : -1);
    },
    { capture: true },
  );
  // a node is not dragged by its chips
  element.addEventListener("pointerdown", (event) => chipOf(event) && event.stopPropagation());
  element.addEventListener("click", (event) => chipOf(event) && openSlider(chipOf(event), placed(chipOf(event))));

  function openSlider(chip, place) {
    if (!place) return;
    const weight = weightAt(String(place.boxes[0].widget.value ?? ""), place.start, place.end, place.syntax);
    if (weight === null) return;
    closeTooltip();
    chip.focus({ preventScroll: true });
    showSlider(chip, weight, drawing.theme(), (to) => {
      place.start = place.end = change(place, { to }) ?? place.start;
      host.changed();
    });
  }
}

/** Give the focus to a neighbour of a chip. */
export function moveFocus(element, chip, by, selector = CHIP) {
  const chips = [...element.querySelectorAll(selector)];
  chips[chips.indexOf(chip) + by]?.focus();
}

let closeOpen = () => {};

/** A slider below a chip. It changes the text when it is released. */
function showSlider(chip, weight, theme, onChange) {
  closeOpen();
  const box = make("div", "weighted-clip-slider");
  const range = { type: "range", min: LEAST, max: Math.max(MOST, weight), step: STEP, ariaLabel: say("Weight") };
  const input = box.appendChild(make("input", "", "", range));
  const output = box.appendChild(make("output", "", String(weight)));
  input.value = String(weight);
  box.style.cssText = `background: ${css(theme.surface)}; color: ${css(theme.text)}; border-color: ${css(theme.line)}`;
  input.style.accentColor = css(theme.accent);
  standBelow(box, chip);
  input.focus({ preventScroll: true });

  const close = () => {
    closeOpen = () => {};
    box.remove();
    window.removeEventListener("pointerdown", onOutside, true);
    window.removeEventListener("wheel", onOutside, true);
  };
  const onOutside = (event) => box.contains(event.target) || close();
  closeOpen = close;
  window.addEventListener("pointerdown", onOutside, { capture: true });
  window.addEventListener("wheel", onOutside, { capture: true, passive: true });
  input.addEventListener("input", () => (output.textContent = String(Number(input.value))));
  input.addEventListener("change", () => onChange(Number(input.value)));
  box.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape" || event.key === "Enter") close();
  });
}
