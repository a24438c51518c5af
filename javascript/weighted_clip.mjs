/**
 * The token strip of the Prompt Lab (web/lab/page.py): draws what the page's server says with the ruler of ComfyUI.
 *
 * The WebUI loads every .mjs file in this folder; the stand-alone lab loads it from its own server. It touches nothing
 * but the lab's elements, and does nothing on a page without them.
 */

import { createRuler } from "../web/comfyui/ruler/draw.js";
import { copyText } from "../web/comfyui/ruler/elements.js";
import { addStyle, onTheme } from "../web/comfyui/ruler/style.js";
import { whenText } from "../web/comfyui/ruler/words.js";

/** The strip of the prompt, and that of the texts of a timed prompt. */
const STRIPS = ["weighted_clip_strip", "weighted_clip_schedule"];
const REFRESH = "weighted_clip_refresh";
/** Milliseconds without a change before the strip is compared with the content of the boxes. */
const QUIET_TIME = 400;
/** Maximum number of repeated requests for the same texts. */
const MAX_ASKED = 3;

/** Ruler of each strip by id, with the data it shows. */
const rulers = new Map();
/** Attribute with the texts that an element was made from. */
const MADE = "[data-weighted-clip-inputs]";
let timer = 0;
let asked = { texts: "", times: 0 };
let isWaiting = false;

/** Draw everything new from gradio. */
function update() {
  for (const id of STRIPS) {
    const host = document.getElementById(id);
    const strip = host?.querySelector("[data-strip]");
    if (strip) draw(id, host, strip.dataset.strip);
  }
}

function draw(id, host, data) {
  if (!rulers.size) start();
  const known = rulers.get(id) ?? { ruler: created(), data: null };
  rulers.set(id, known);
  // beside gradio's element, of which gradio may replace the inside; style.css then hides that one
  if (host.previousElementSibling !== known.ruler.element) host.before(known.ruler.element);
  if (data === known.data) return;
  const isNew = known.data === null;
  known.data = data;
  const { view, views = view ? [view] : [], message } = JSON.parse(data);
  const sections = views.map((one) => ({ label: whenText(one, views), view: one }));
  known.ruler.show({ sections, hasScheme: true, message, isSilent: isNew });
  check();
}

function created() {
  const ruler = createRuler();
  new ResizeObserver(() => ruler.refresh()).observe(ruler.box);
  onTheme(() => ruler.refresh());
  return ruler;
}

function start() {
  addStyle();
  for (const type of ["input", "click"]) {
    document.addEventListener(type, ({ target }) => target.closest?.("[id^=weighted_clip_]") && check());
  }
  document.addEventListener("keydown", leaveMenu, true);
  document.addEventListener("click", copy);
}

/** Copy the text of a button, and say so next to it. */
async function copy({ target }) {
  const button = target.closest?.("#weighted_clip_page [data-weighted-clip-copy]");
  if (!button) return;
  const told = button.parentElement.querySelector("[role=status]");
  told.textContent = "";
  const isCopied = await copyText(button.dataset.weightedClipCopy);
  told.textContent = isCopied ? "Copied." : "The browser did not let it be copied.";
}

/** What an action left on the page goes once its user changes anything: it may be of other values then. */
function pass({ type, target }) {
  const part = target.closest?.("#weighted_clip_page, .weighted-clip-script");
  if (!part || (type === "mousedown" && !target.closest("[role=option]"))) return;
  for (const told of part.querySelectorAll(".weighted-clip-passing")) told.hidden = true;
}

/** gradio takes Tab in a menu for typing: it would filter the list by what is chosen and leave it open behind. */
function leaveMenu(event) {
  if (event.key === "Tab" && event.target.closest?.(":is(#weighted_clip_page, .weighted-clip-script) [role=combobox]")) event.stopPropagation();
}

/** gradio names the place of a picture that is not there yet, and not what it is; gradio 4 takes a menu's field for its list. */
function nameParts() {
  for (const field of document.querySelectorAll(":is(#weighted_clip_page, .weighted-clip-script) input[role=listbox]")) {
    field.setAttribute("role", "combobox");
  }
  for (const place of document.querySelectorAll("#weighted_clip_page [aria-label].empty:not([role])")) {
    place.setAttribute("role", "img");
  }
}

/**
 * Soon, ask again if something is to be seen that is not of the texts that stand there. gradio 3.41 drops what happens
 * while it waits for an answer, and what is typed before gradio is ready reaches nobody.
 */
function check() {
  clearTimeout(timer);
  timer = setTimeout(() => {
    markChanged();
    const old = [...document.querySelectorAll(MADE)].find(isOld);
    if (!old) {
      asked = { texts: "", times: 0 };
      return;
    }
    const texts = textsOf(old);
    asked = { texts, times: asked.texts === texts ? asked.times + 1 : 1 };
    if (asked.times > MAX_ASKED) return;
    document.getElementById(REFRESH)?.click();
    check();
  }, QUIET_TIME);
}

/** Grey out elements whose texts and choices have changed. */
function markChanged() {
  for (const element of document.querySelectorAll("[data-weighted-clip-of]")) {
    const made = Object.entries(JSON.parse(element.dataset.weightedClipOf));
    const isChanged = made.some(([id, value]) => !isShown(fieldOf(id), value));
    element.classList.toggle("weighted-clip-stale", isChanged);
    const note = element.querySelector(".weighted-clip-changed");
    if (note.hidden === isChanged) note.hidden = !isChanged;
  }
}

/** Whether a field shows a value; a menu also says what it does. */
const isShown = (field, value) => !field || field.value === value || (field.matches("input") && field.value.startsWith(`${value}: `));

const fieldOf = (id) => document.querySelector(`#${id} :is(textarea, input)`);

/** Whether something visible was made from other texts than those in the boxes, or is missing. */
const isOld = (element) => {
  const strip = element.closest(STRIPS.map((id) => `#${id}`).join());
  const isSeen = element.offsetParent || strip?.previousElementSibling?.offsetParent;
  const texts = inputsOf(element);
  return isSeen && (texts === "[]" || texts !== textsOf(element));
};

const inputsOf = (element) => JSON.stringify(Object.values(JSON.parse(element.dataset.weightedClipInputs)));

const textsOf = (element) => {
  const inputs = Object.entries(JSON.parse(element.dataset.weightedClipInputs));
  return JSON.stringify(inputs.map(([id, text]) => fieldOf(id)?.value ?? text));
};

const isMade = (node) => node.querySelector?.(MADE) || node.matches?.(MADE);

new MutationObserver((changes) => {
  // an answer may come after that to a later question
  if (changes.some(({ addedNodes }) => [...addedNodes].some(isMade))) check();
  if (isWaiting) return;
  isWaiting = true;
  queueMicrotask(() => {
    isWaiting = false;
    update();
    markChanged();
    nameParts();
  });
}).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-strip", "data-weighted-clip-of"] });
for (const type of ["input", "change", "mousedown"]) document.addEventListener(type, pass);
update();
