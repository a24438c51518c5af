/**
 * In the WebUI: the tokens of the prompts below their boxes in txt2img and img2img, by the host's own reading
 * (hosts/webui/script/routes.py), and what goes between those boxes, our script there and our tab. A click on a token changes its weight in
 * the box as typing does. It changes nothing else of the host's, and does nothing on a page that has no such boxes, as the stand-alone
 * lab's.
 */

import { fixedText, replaceText } from "../web/comfyui/ruler/boxes.js";
import { createRuler } from "../web/comfyui/ruler/draw.js";
import { make } from "../web/comfyui/ruler/elements.js";
import { say, setLanguage } from "../web/comfyui/ruler/language.js";
import { post } from "../web/comfyui/ruler/routes.js";
import { addStyle, onTheme } from "../web/comfyui/ruler/style.js";
import { addChipWeights } from "../web/comfyui/ruler/weight_input.js";
import { texts, whenText } from "../web/comfyui/ruler/words.js";

/** Relative, as a WebUI may not be at the top of its address. */
const ROUTE = "./weighted-clip/ruler";
/** Milliseconds without a change before the server is asked. */
const QUIET_TIME = 300;
/** Milliseconds between checks for text that the host itself puts into the boxes, without events. */
const LOOK_TIME = 1000;
/** Milliseconds until a server that has not answered is asked again. */
const RETRY_TIME = 5000;
/** Milliseconds after which the host knows the model that was chosen. */
const CHOSEN_TIME = 2000;
const HOST_SYNTAX = "a1111";
/** The host's prompt boxes, and the names of their counters. */
const BOXES = ["txt2img", "img2img"].flatMap((tab) => [
  { tab, id: `${tab}_prompt`, counter: `${tab}_token_counter`, isNegative: false },
  { tab, id: `${tab}_neg_prompt`, counter: `${tab}_negative_token_counter`, isNegative: true },
]);

const AREAS = BOXES.map(({ id }) => `#${id} textarea`).join();

const find = (selector) => document.querySelector(selector);

/** Whether the host's user wants the rulers; on until the host has sent its settings. */
const isOn = () => globalThis.opts?.weighted_clip_ruler !== false;

/** The host's menu of models: Forge's, and A1111's. */
const MODEL = ":is(.model_selection, #setting_sd_model_checkpoint) input";

/** Settings of our script with a box of lines, below which stands what is wrong with them. */
const LINES = ["bind", "places"];

/** The ruler of one box of the host. */
class PromptRuler {
  #box;
  #drawing = createRuler();
  #content = null;
  /** The last request as JSON, and what else its answer hangs on. */
  #asked = "";
  #model = "";
  #timer = 0;
  /** When to ask again, in milliseconds since the page was opened. */
  #retryAt = Infinity;
  #abort = new AbortController();

  constructor(box) {
    this.#box = box;
    this.#drawing.element.classList.add("weighted-clip-prompt");
    this.#drawing.element.id = `weighted_clip_ruler_${box.id}`;
    new ResizeObserver(() => this.#drawing.refresh()).observe(this.#drawing.box);
    onTheme(() => this.#drawing.refresh());
    const step = () => Number(globalThis.opts?.keyedit_precision_attention) || undefined;
    addChipWeights(this.#drawing, (section) => this.#placeOf(section), { step, changed: () => this.check() });
  }

  get #area() {
    return find(`#${this.#box.id} textarea`);
  }

  /** Compare the ruler with the page, and send a request soon. */
  check(quietTime = QUIET_TIME) {
    const area = this.#area;
    const text = area?.value ?? "";
    const request = this.#request(text);
    if (!isOn() || !(text.trim() || (request.settings.places?.trim() && !this.#box.isNegative))) {
      this.#clear();
      return;
    }
    if (!area.offsetParent) return;
    this.#place(area);
    const body = JSON.stringify(request);
    // an image that is made may load a model, which reads differently
    const model = find(MODEL)?.value ?? "";
    const asked = [body, model, find(`#html_log_${this.#box.tab}`)?.textContent].join("\n");
    if (asked === this.#asked && performance.now() < this.#retryAt) {
      this.#recount();
      return;
    }
    this.#asked = asked;
    this.#retryAt = model === this.#model ? Infinity : performance.now() + CHOSEN_TIME;
    this.#model = model;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(body), quietTime);
  }

  /** Ask again at the next check: another page, or a program, may have loaded a model. */
  expire() {
    this.#retryAt = 0;
  }

  /** The request: steps are the host's, and settings those of our script if it is switched on. */
  #request(text) {
    const { tab, isNegative } = this.#box;
    const shown = shownIn(scriptOf(tab));
    const settings = shown.enabled ? shown : {};
    const steps = Math.round(Number(find(`#${tab}_steps input`)?.value)) || 20;
    const syntax = settings.syntax?.split(": ")[0] || HOST_SYNTAX;
    // a phrase of the settings may be in a style, or in the prompt of hires. fix
    const isPart = Boolean(find(`#${tab}_styles .token`) || (tab === "txt2img" && find("#hires_prompt textarea")?.value));
    return { text, is_negative: isNegative, steps: Math.max(1, steps), syntax, settings, is_part: isPart };
  }

  /** Where the text of a section is changed by hand: null while it is another than what stands in the box. */
  #placeOf(section) {
    const { text, syntax } = this.#content.sections[section].view;
    const area = this.#area;
    return area?.value === text ? { boxes: [boxOf(area)], syntax } : null;
  }

  #fix(section, issues) {
    const place = this.#placeOf(section);
    if (!place) return;
    replaceText(place.boxes[0], fixedText(this.#area.value, issues));
    this.check();
  }

  async #ask(body) {
    this.#abort.abort();
    const { signal } = (this.#abort = new AbortController());
    try {
      const response = await post((request) => fetch(ROUTE, request), body, signal);
      const answer = await response.json().catch(() => ({}));
      if (signal.aborted) return;
      if (!response.ok) throw new Error(answer.error ?? `The server answers ${response.status}: restart the WebUI`);
      const { views, notes } = answer;
      const { syntax, settings } = JSON.parse(body);
      const label = (view) => [view.encoder, say(whenText(view, views))].filter(Boolean).join(", ");
      const sections = views.map((view) => ({ label: label(view), view }));
      this.#show({ sections, notes, syntax, hasScheme: Boolean(settings.enabled) });
    } catch (error) {
      if (signal.aborted) return;
      this.#retryAt = performance.now() + RETRY_TIME;
      this.#show({ ...this.#content, message: error.message, isStale: true });
    }
  }

  #show({ sections = [], ...rest }) {
    this.#content = { ...rest, sections, total: this.#total(rest.syntax, sections) };
    this.#tellAtBoxes(sections.flatMap(({ view }) => view.issues));
    const onFix = (section, issues) => this.#fix(section, issues);
    const isEditable = sections.some(({ view }) => view.syntax !== "none");
    this.#drawing.show({ ...this.#content, isEditable, onFix });
  }

  /** Say below the boxes of our script what is wrong with their lines. */
  #tellAtBoxes(issues) {
    if (this.#box.isNegative) return;
    for (const name of LINES) {
      const box = find(`#${scriptOf(this.#box.tab)}${name}`);
      const lines = issues.filter(({ about }) => about === name).map(({ message }) => message);
      const told = box?.querySelector(".weighted-clip-refused") ?? box?.appendChild(make("ul", "weighted-clip-refused"));
      if (told?.textContent !== lines.join("")) told?.replaceChildren(...lines.map((line) => make("li", "", line)));
    }
  }

  /**
   * The number of the host's counter, which comes later than ours and counts styles too; "" if it shows none. While the
   * host counts, gradio writes the seconds in front of the last number. It counts in its own syntax, and for T5 brackets
   * and numbers as well: there ours is right, that of the longest text.
   */
  #total(syntax, sections) {
    const views = sections.map(({ view }) => view);
    if (views.some((view) => view.encoder) || (syntax && syntax !== HOST_SYNTAX)) {
      const totals = texts(views).map(({ total }) => total);
      if (totals.length === 1 && views.length > 1) return ""; // which the first of its encoders shows
      return totals.reduce((most, total) => (parseInt(total) > parseInt(most) ? total : most), totals[0] ?? "");
    }
    const counter = find(`#${this.#box.counter}`);
    const text = counter?.offsetParent ? counter.textContent : "";
    return /\d+\/\d+(?=\s*$)/.exec(text)?.[0] ?? "";
  }

  #recount() {
    if (!this.#content) return;
    const { syntax, sections, total } = this.#content;
    if (total !== this.#total(syntax, sections)) this.#show({ ...this.#content, isSilent: true });
  }

  /** Below the row of the box, outside everything that the host redraws. */
  #place(area) {
    const row = area.closest(".prompt-row") ?? find(`#${this.#box.id}`);
    if (row.nextElementSibling !== this.#drawing.element) row.after(this.#drawing.element);
  }

  #clear() {
    if (!this.#asked) return;
    clearTimeout(this.#timer);
    this.#abort.abort();
    this.#asked = "";
    this.#content = null;
    this.#tellAtBoxes([]);
    this.#drawing.show({ sections: [], isSilent: true });
    this.#drawing.element.remove();
  }
}

const OURS = "weighted_clip_";
const scriptOf = (tab) => `script_${tab}_${OURS}`;

/** Put a value into a field as typing does. */
function fill(selector, value) {
  const field = find(selector);
  if (!field) return;
  isFilling = true;
  write(field, value);
  isFilling = false;
}

function write(field, value) {
  field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

let isFilling = false;
/** Whether our tab holds something of its user's own, neither fetched nor sent. */
let isTouched = false;
let wasOpen = false;
/** The last of the host's tabs that was open. */
let lastTab = "txt2img";
let numSent = 0;

/** What stands in the fields whose ids begin alike, by the rest of the id; of the ticks those of the script. */
function shownIn(prefix) {
  const fields = {};
  for (const part of document.querySelectorAll(`[id^="${prefix}"]`)) {
    const field = part.querySelector("textarea, input:not([type=range], [type=checkbox], [type=file], [type=radio])");
    if (field) fields[part.id.slice(prefix.length)] = field.value;
  }
  for (const name of ["enabled", "word_maps"]) fields[name] = !!find(`#${prefix}${name} input[type=checkbox]`)?.checked;
  return fields;
}

/** The same as JSON; each text is another, so that gradio sees a change. */
const fieldsOf = (prefix) => JSON.stringify({ ...shownIn(prefix), sent: String((numSent += 1)) });

/** A box of the host, as the ruler changes its text. */
function boxOf(area) {
  const widget = { element: area, type: "customtext" };
  Object.defineProperty(widget, "value", { get: () => area.value, set: (value) => write(area, value) });
  return { node: { graph: { list_of_graphcanvas: [area] } }, widget };
}

/** Fetch the prompt of txt2img or img2img into our tab, with its steps and what our script does there. */
function fetchFrom(tab, isEmptyTaken = true) {
  const prompt = find(`#${tab}_prompt textarea`)?.value ?? "";
  if (prompt.trim() || isEmptyTaken) fill("#weighted_clip_prompt textarea", prompt);
  const steps = find(`#${tab}_steps input`)?.value;
  if (steps) fill("#weighted_clip_steps input", steps);
  fill("#weighted_clip_taken textarea", fieldsOf(scriptOf(tab)));
  isTouched = false;
}

/** Send our tab's prompt and choices to txt2img or img2img, and switch to it. */
function sendTo(tab) {
  fill(`#${tab}_prompt textarea`, find("#weighted_clip_prompt textarea").value);
  fill(`#${scriptOf(tab)}given textarea`, fieldsOf(OURS));
  isTouched = false;
  globalThis[`switch_to_${tab}`]?.();
}

function exchange({ target }) {
  const [, way, tab] = /^weighted_clip_(from|to)_(txt2img|img2img)$/.exec(target.closest?.("button")?.id ?? "") ?? [];
  if (way === "to") sendTo(tab);
  else if (way) fetchFrom(tab);
}

/** When our tab is opened, it shows what the next picture will use, unless its user has something else there. */
function look() {
  lastTab = ["txt2img", "img2img"].find((tab) => find(`#${tab}_prompt textarea`)?.offsetParent) ?? lastTab;
  const isOpen = !!find("#weighted_clip_prompt textarea")?.offsetParent;
  const isOpening = isOpen && !wasOpen;
  wasOpen = isOpen; // before it is filled, which is an event as well
  if (isOpening && !isTouched) fetchFrom(lastTab, false);
}

function touch({ target }) {
  if (!isFilling && target.closest?.("#weighted_clip_page :is(textarea, input, [role=option])")) isTouched = true;
}

const rulers = BOXES.map((box) => new PromptRuler(box));
const checkAll = () => {
  if (document.hidden) return;
  look();
  rulers.forEach((ruler) => ruler.check());
};

addStyle();
document.addEventListener("input", checkAll);
document.addEventListener("click", exchange);
document.addEventListener("click", () => setTimeout(look));
document.addEventListener("input", touch);
document.addEventListener("mousedown", touch);
document.addEventListener("visibilitychange", checkAll);
window.addEventListener("focus", () => rulers.forEach((ruler) => ruler.expire()));
document.addEventListener("focusin", ({ target }) => target.matches?.(AREAS) && rulers.forEach((ruler) => ruler.expire()));
setInterval(checkAll, LOOK_TIME);
globalThis.onOptionsChanged?.(async () => {
  await setLanguage(/^zh/i.test(globalThis.opts?.localization ?? "") ? "zh" : "en");
  checkAll();
});
