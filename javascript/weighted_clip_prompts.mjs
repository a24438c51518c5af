/**
 * In the WebUI: the tokens of the prompts below their boxes in txt2img and img2img, by the host's own reading
 * (hosts/webui/routes.py), and what goes between those boxes, our script there and our tab. It changes nothing of the host's, and
 * does nothing on a page that has no such boxes, as the stand-alone lab's.
 */

import { createRuler } from "../web/comfyui/ruler/draw.js";
import { setLanguage } from "../web/comfyui/ruler/language.js";
import { addStyle, onTheme } from "../web/comfyui/ruler/style.js";
import { whenText } from "../web/comfyui/ruler/words.js";

/** Relative, as a WebUI may not be at the top of its address. */
const ROUTE = "./weighted-clip/ruler";
/** Milliseconds without a change before the server is asked. */
const QUIET_TIME = 300;
/** Milliseconds between checks for text that the host itself puts into the boxes, without events. */
const LOOK_TIME = 1000;
/** The status of a busy server, and milliseconds until the next request. */
const BUSY = 429;
const BUSY_TIME = 250;
const HOST_SYNTAX = "a1111";
/** The host's prompt boxes, and the names of their counters. */
const BOXES = ["txt2img", "img2img"].flatMap((tab) => [
  { tab, id: `${tab}_prompt`, counter: `${tab}_token_counter`, isNegative: false },
  { tab, id: `${tab}_neg_prompt`, counter: `${tab}_negative_token_counter`, isNegative: true },
]);

const find = (selector) => document.querySelector(selector);

/** Whether the host's user wants the rulers; on until the host has sent its settings. */
const isOn = () => globalThis.opts?.weighted_clip_ruler !== false;

/** The ruler of one box of the host. */
class PromptRuler {
  #box;
  #drawing = createRuler();
  #content = null;
  /** The last request, as JSON. */
  #asked = "";
  #timer = 0;
  #abort = new AbortController();

  constructor(box) {
    this.#box = box;
    this.#drawing.element.classList.add("weighted-clip-prompt");
    this.#drawing.element.id = `weighted_clip_ruler_${box.id}`;
    new ResizeObserver(() => this.#drawing.refresh()).observe(this.#drawing.box);
    onTheme(() => this.#drawing.refresh());
  }

  /** Compare the ruler with the page, and send a request soon. */
  check(quietTime = QUIET_TIME) {
    const area = find(`#${this.#box.id} textarea`);
    const text = area?.value ?? "";
    if (!isOn() || !text.trim()) {
      this.#clear();
      return;
    }
    if (!area.offsetParent) return;
    this.#place(area);
    const body = JSON.stringify(this.#request(text));
    if (body === this.#asked) {
      this.#recount();
      return;
    }
    this.#asked = body;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#ask(body), quietTime);
  }

  /** The request: syntax and steps are the host's, or those of our script if it is switched on. */
  #request(text) {
    const { tab, isNegative } = this.#box;
    const script = `#script_${tab}_weighted_clip_`;
    const isArmed = find(`${script}enabled input[type=checkbox]`)?.checked;
    const steps = Math.round(Number(find(`#${tab}_steps input`)?.value)) || 20;
    const syntax = (isArmed && find(`${script}syntax input`)?.value.split(": ")[0]) || HOST_SYNTAX;
    return { text, is_negative: isNegative, steps: Math.max(1, steps), syntax };
  }

  async #ask(body) {
    this.#abort.abort();
    const { signal } = (this.#abort = new AbortController());
    try {
      let response = await post(body, signal);
      while (response.status === BUSY) {
        await new Promise((done) => setTimeout(done, BUSY_TIME));
        response = await post(body, signal);
      }
      const answer = await response.json().catch(() => ({}));
      if (signal.aborted) return;
      if (!response.ok) throw new Error(answer.error ?? `The server answers ${response.status}: restart the WebUI`);
      const { views, notes } = answer;
      const sections = views.map((view) => ({ label: whenText(view, views), view }));
      this.#show({ sections, notes, syntax: JSON.parse(body).syntax });
    } catch (error) {
      if (!signal.aborted) this.#show({ ...this.#content, message: error.message, isStale: true });
    }
  }

  #show({ sections = [], ...rest }) {
    this.#content = { ...rest, sections, total: this.#total(rest.syntax, sections) };
    this.#drawing.show(this.#content);
  }

  /**
   * The number of the host's counter, which comes later than ours and counts styles too; "" if it shows none. While the
   * host counts, gradio writes the seconds in front of the last number. It counts in its own syntax: in another, ours is
   * right, that of the longest text.
   */
  #total(syntax, sections) {
    if (syntax && syntax !== HOST_SYNTAX) {
      const totals = sections.map(({ view }) => view.total);
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
    this.#drawing.show({ sections: [], isSilent: true });
    this.#drawing.element.remove();
  }
}

function post(body, signal) {
  const headers = { "Content-Type": "application/json" };
  return fetch(ROUTE, { method: "POST", headers, body, signal }).catch((error) => {
    throw signal.aborted ? error : new Error("The server does not answer");
  });
}

/** Put a value into a field as typing does. */
function fill(selector, value) {
  const field = find(selector);
  if (!field) return;
  field.value = value;
  isFilling = true;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  isFilling = false;
}

let isFilling = false;
/** Whether our tab holds something of its user's own, neither fetched nor sent. */
let isTouched = false;
let wasOpen = false;
/** The last of the host's tabs that was open. */
let lastTab = "txt2img";
let numSent = 0;

const OURS = "weighted_clip_";
const scriptOf = (tab) => `script_${tab}_${OURS}`;

/** What stands in the fields whose ids begin alike, as JSON by the rest of the id; each text is another, so that gradio sees a change. */
function fieldsOf(prefix) {
  const fields = { sent: String((numSent += 1)) };
  for (const part of document.querySelectorAll(`[id^="${prefix}"]`)) {
    const field = part.querySelector("textarea, input:not([type=range], [type=checkbox], [type=file], [type=radio])");
    if (field) fields[part.id.slice(prefix.length)] = field.value;
  }
  fields.enabled = !!find(`#${prefix}enabled input[type=checkbox]`)?.checked;
  return JSON.stringify(fields);
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
setInterval(checkAll, LOOK_TIME);
globalThis.onOptionsChanged?.(async () => {
  await setLanguage(/^zh/i.test(globalThis.opts?.localization ?? "") ? "zh" : "en");
  checkAll();
});
