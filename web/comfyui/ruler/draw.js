/**
 * Draws the token ruler: views (weighting/reading/view.py) in, DOM out. Knows nothing of ComfyUI; importing it does nothing.
 *
 * From top to bottom: for each text a strip of chips, the count line, the problems, and unseen what a screen reader
 * says.
 */

import { css, dress, pageTheme, phraseColor, readable, themeOf, waveColor, weightColor } from "./colors.js";
import { drawCurve } from "./curve.js";
import { drawPlaces, markPlaced } from "./draw_places.js";
import { make } from "./elements.js";
import { say } from "./language.js";
import { addTooltip, closeTooltip } from "./tooltip.js";
import { SAME_PICTURE, counted, countText, optionTexts, spoken, texts } from "./words.js";

/** Maximum number of chips shown; a button shows the rest. */
const MAX_CHIPS = 600;
/** Maximum number of texts shown; the rest are counted. */
const MAX_SECTIONS = 20;
/** Maximum number of characters of a prompt on a button, and of a setting. */
const MAX_LABEL = 40;
/** Maximum number of settings listed. */
const MAX_SETTINGS = 40;
/** Milliseconds without a change before a screen reader is told. */
const QUIET_TIME = 1000;

const RIGHT_TO_LEFT = /^[^\p{L}]*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

let numRulers = 0;

/**
 * @typedef {object} Content Content of a ruler.
 * @property {{label: string, view: object}[]} sections Its texts; a label is text or "".
 * @property {boolean} [hasChips] False: count line and problems only.
 * @property {boolean} [hasScheme] Whether the scheme is named after the syntax.
 * @property {string} [how] How weights act where they are left out of the rows; named instead of the scheme.
 * @property {string} [total] The host's own count of tokens, or "" where it has none; then each view has a `total` too,
 *   and syntax and scheme, unless `hasScheme`, are the host's and not named. A view with `is_beside` is of the text of
 *   the section before it, by another encoder.
 * @property {string[]} [notes] Further notes in the count line.
 * @property {string} [message] Reason why there is nothing newer; the chips are then grey.
 * @property {boolean} [isStale] Whether the chips belong to another text than the current one.
 * @property {boolean} [isSilent] Whether nothing is announced to a screen reader.
 * @property {(section: number, from: string) => void} [onConvert] Converts the prompt of a section from the syntax that
 *   a problem says some of it is written in.
 * @property {(section: number, issues: object[]) => void} [onFix] Writes what some problems of a section offer to.
 * @property {string} [splitText] Text of a button that splits a text that is more than a prompt, by `onSplit`.
 * @property {(section: number) => void} [onSplit] Splits it.
 * @property {(section: number) => void} [onDrawAgain] Opens the picture whose data it is.
 * @property {[string, string][]} [settings] Names and values to list.
 * @property {string} [announcement] Text for a screen reader, instead of numbers of tokens and problems.
 * @property {boolean} [isEditable] Whether chips can have the focus, to change their weights (weight_input.js).
 * @property {Set<number>[]} [chosen] For each text whose words are offered, the numbers of its chips that are chosen
 *   (offered.js).
 * @property {{message: string, label: string}[]} [problems] Problems of the node's inputs, whose names are the labels.
 */

/**
 * Make a ruler, which is empty.
 * @returns {{element: HTMLElement, box: HTMLElement, show: (content: Content) => void, refresh: () => void,
 *   remove: () => void, theme: () => object, keepFocus: (chip: HTMLElement, start: number) => void}} `element` for the
 *   page and in it `box`, which is as high as what it shows; `show` replaces that; `refresh` draws it again if the
 *   colours of the page have changed; `remove` ends timers; `theme` gives the colours; `keepFocus` says that the text of
 *   the chip that has the focus now begins somewhere else.
 */
export function createRuler() {
  const element = make("div", "weighted-clip-ruler");
  const box = element.appendChild(make("div", "wcr-box", "", { tabIndex: -1 }));
  const status = element.appendChild(make("div", "wcr-unseen", "", { role: "status" }));
  const id = `weighted-clip-ruler-${(numRulers += 1)}`;
  let theme = themeOf([34, 34, 34], [221, 221, 221]);
  let content = { sections: [] };
  let timer = 0;
  /** The chip that had the focus last, while nothing else has it. */
  let focused = null;
  addTooltip(element, () => theme);

  function draw(limit = MAX_CHIPS) {
    closeTooltip();
    theme = pageTheme(box) ?? theme;
    dress(element, theme, ["text", "muted", "line", "faint", "surface", "accent", "problem", "wave"]);
    box.classList.toggle("wcr-stale", Boolean(content.isStale));
    const scrolled = box.querySelector(".wcr-scroll")?.scrollTop ?? 0;
    const had = document.activeElement;
    const isPressed = had?.tagName === "BUTTON" && box.contains(had);
    if (had !== document.body && !box.contains(had)) focused = null;
    else if (had?.dataset.start || had?.dataset.word) focused = { ...had.dataset };
    const isEmpty = !content.sections.length && !content.message && !content.notes?.length && !content.problems?.length;
    box.replaceChildren(...(isEmpty ? [] : parts(content, theme, id, limit, () => draw(Infinity))));
    const scroll = box.querySelector(".wcr-scroll");
    if (scroll) scroll.scrollTop = scrolled;
    if (focused) chipAt(box, focused)?.focus({ preventScroll: true });
    if (isPressed) box.focus({ preventScroll: true }); // so that the keys that undo still come here
    markScrolling(box);
  }

  function announce() {
    const { sections, message = "", announcement, problems = [] } = content;
    const said = announcement ?? spoken(sections.map((section) => section.view), message);
    const text = [...problems.map((problem) => say(problem.message)), said].filter(Boolean).join(" ");
    if (status.textContent !== text) status.textContent = text;
  }

  return {
    element,
    box,
    show(next) {
      content = next;
      draw();
      if (next.isSilent) return; // what was to be announced before still is
      clearTimeout(timer);
      timer = setTimeout(announce, QUIET_TIME);
    },
    refresh() {
      const now = pageTheme(box);
      if (now && JSON.stringify(now) !== JSON.stringify(theme)) draw();
      else markScrolling(box);
    },
    remove() {
      clearTimeout(timer);
      closeTooltip();
    },
    theme: () => theme,
    keepFocus(chip, start) {
      chip.dataset.start = String(start);
    },
  };
}

/** Everything in the box but the status. */
function parts(content, theme, id, limit, onMore) {
  const { sections, hasChips = true, isEditable = false, problems = [] } = content;
  const issues = sections.flatMap(({ view }) => view.issues);
  const result = [];
  if (hasChips) {
    const strips = drawSections(content, theme, id, limit);
    if (isEditable && strips.element) letChipsHaveFocus(strips.element);
    if (strips.element) result.push(strips.element);
    if (strips.numLeft) result.push(moreTokens(strips.numLeft, onMore));
  }
  const count = countLine(content);
  if (count.childElementCount) result.push(count);
  if (issues.length || problems.length) {
    const list = drawProblems([...issues, ...problems]);
    for (const [i, row] of [...list.children].entries()) row.id = `${id}-${i}`;
    const { onConvert, onFix, onSplit, onDrawAgain } = content;
    if (onConvert || onFix || onSplit || onDrawAgain) addButtons(list, content);
    result.push(list);
  }
  if (content.settings?.length) result.push(drawSettings(content.settings));
  return result;
}

/**
 * The list of problems.
 * @param {{message: string, label?: string}[]} problems What they are, and the names of inputs that they are about.
 * @returns {HTMLElement} The list.
 */
export function drawProblems(problems) {
  const list = make("div", "wcr-problems", "", { role: "list", ariaLabel: say(counted(problems.length, "problem")) });
  list.dataset.captureWheel = "true";
  for (const { message, label } of problems) {
    const row = list.appendChild(make("p", "", "", { role: "listitem" }));
    row.append(...(label ? [make("b", "wcr-input", label), " "] : []), say(message));
  }
  return list;
}

function drawSettings(settings) {
  const list = make("div", "wcr-settings", "", { role: "list", ariaLabel: say("Settings") });
  list.dataset.captureWheel = "true";
  for (const [name, value] of settings.slice(0, MAX_SETTINGS)) {
    const row = list.appendChild(make("span", "wcr-setting", "", { role: "listitem" }));
    row.append(make("b", "", shortened(name)), ` ${shortened(value)}`);
  }
  if (settings.length > MAX_SETTINGS) list.append(make("span", "", say(counted(settings.length - MAX_SETTINGS, "more setting"))));
  return list;
}

const shortened = (text) => (text.length > MAX_LABEL ? `${text.slice(0, MAX_LABEL)}…` : text);

/**
 * Buttons at the problems of each text: to split it where it is more than a prompt, or draw its picture; to convert it, at the first that is
 * about a form of some other syntax; to write something else there; and to do so for all of a kind, at the first of them.
 */
function addButtons(list, { sections, onConvert, onFix, onSplit, onDrawAgain, splitText }) {
  const rows = [...list.children];
  for (const [index, { view }] of sections.entries()) {
    const found = new Set();
    for (const issue of view.issues) {
      const row = rows.shift();
      const add = (text, onClick) => {
        const button = row.appendChild(make("button", "wcr-button", say(text), { type: "button" }));
        button.addEventListener("click", onClick);
      };
      const { written_in: from, fix } = issue;
      const alike = fix ? view.issues.filter(({ code, fix: other }) => code === issue.code && other) : [];
      const isFirst = !found.has(from ?? issue.code);
      found.add(from ?? issue.code);
      if ((onSplit || onDrawAgain) && issue.code === "generation-data") {
        if (onSplit) add(splitText, () => onSplit(index));
        if (onDrawAgain) add(SAME_PICTURE, () => onDrawAgain(index));
        list.prepend(row); // the others are mostly gone when that is done
      }
      if (onConvert && from && isFirst) add(`Convert from ${from} to ${view.syntax}`, () => onConvert(index, from));
      if (!onFix) continue;
      if (fix) add(`Write ${shortened(fix)}`, () => onFix(index, [issue]));
      if (alike.length > 1 && isFirst) add(`All ${alike.length}`, () => onFix(index, alike));
    }
  }
}

/** The strips of all texts in a box that scrolls, and how many tokens were left out. */
function drawSections({ sections, total, chosen = [] }, theme, id, limit) {
  const scroll = make("div", "wcr-scroll", "", { role: "group", ariaLabel: say("Tokens") });
  scroll.dataset.captureWheel = "true"; // Nodes 2.0 asks for it
  let room = limit;
  let numLeft = 0;
  let numIssues = 0;
  for (const [index, { label, view }] of sections.slice(0, MAX_SECTIONS).entries()) {
    const items = itemsOf(view);
    const shown = items.slice(0, room);
    room -= shown.length;
    numLeft += numTokens(items.slice(shown.length));
    const section = make("div", "wcr-section");
    if (!isAlone(sections)) section.append(sectionHead(label, view, total));
    const idOfPlace = (place) => `${id}-${index}-place-${view.places.indexOf(place)}`;
    if (shown.length) section.append(drawStrip(shown, view, theme, (issue) => `${id}-${numIssues + issue}`, idOfPlace));
    if (chosen[index]) offer(section.querySelectorAll(".wcr-chip"), index, chosen[index]);
    if (view.places?.length) section.append(drawPlaces(view.places, theme, idOfPlace));
    section.dataset.section = String(index);
    if (section.childElementCount) scroll.append(section);
    numIssues += view.issues.length;
  }
  return { element: scroll.childElementCount ? scroll : null, numLeft };
}

/** Whether there is one text, whose label and count are in the count line. */
const isAlone = (sections) => sections.length === 1 && !sections[0].view.num_more;

function sectionHead(label, view, total) {
  const head = make("div", "wcr-head");
  head.append(...labels(label), ...counts(view, total === undefined ? undefined : view.total));
  return head;
}

const labels = (label) => (label ? [make("span", "wcr-label", say(label))] : []);

/** The chips of a text in reading order, and `{border, isBreak}` where a chunk ends with a BREAK or another follows. */
const itemsOf = (view) =>
  view.chunks.flatMap(({ chips, num_tokens: count, capacity, has_break: isBreak }, index) => {
    const hasBorder = isBreak || index < view.chunks.length - 1;
    return hasBorder ? [...chips, { border: capacity === null ? "" : `${count} / ${capacity}`, isBreak }] : chips;
  });

const numTokens = (items) => items.reduce((total, { ids = [] }) => total + ids.length, 0);

function drawStrip(items, view, theme, idOf, idOfPlace) {
  const strip = make("div", "wcr-chips", "", { role: "list", dir: RIGHT_TO_LEFT.test(view.text) ? "rtl" : "ltr" });
  let word = null;
  for (const [index, item] of items.entries()) {
    if (item.border !== undefined) {
      const border = make("span", "wcr-border", item.border, { role: "listitem", title: say("End of a chunk") });
      if (item.isBreak) border.append(make("b", "", "BREAK"));
      strip.append(border);
      continue;
    }
    if (!item.joins) word = strip.appendChild(make("span", "wcr-word", "", { role: "none" }));
    const chip = word.appendChild(drawChip(item, Boolean(items[index + 1]?.joins), view.issues, theme, idOf));
    if (item.places?.length) markPlaced(chip, item.places.map((number) => view.places[number]), theme, idOfPlace);
  }
  return strip;
}

/** Let the chips of a text be chosen; one is reached by the Tab key. */
function offer(chips, text, chosen) {
  for (const [word, chip] of chips.entries()) {
    chip.classList.add("wcr-offered");
    Object.assign(chip, { role: "button", tabIndex: word ? -1 : 0, ariaPressed: String(chosen.has(word)) });
    Object.assign(chip.dataset, { text, word });
  }
  if (chips.length) chips[0].closest(".wcr-chips").role = "group";
}

function drawChip(chip, isJoined, issues, theme, idOf) {
  const background = weightColor(chip.weight, theme);
  const element = make("span", `wcr-chip wcr-${kindOf(chip.weight)}`, "", { role: "listitem" });
  const color = chip.hidden ? readable(background, theme.muted, theme.text) : readable(background, theme.text);
  const isTag = !chip.ids.length && !chip.hidden;
  if (!isTag) Object.assign(element.style, { background: css(background), color: css(color) });
  const text = element.appendChild(make("span", "wcr-text"));
  // within it, so that a line through the text is not wavy too
  text.append(chip.problems.length ? make("span", "wcr-waved", chip.text) : chip.text);
  if (chip.note) element.append(make("span", "wcr-note", chip.note));
  if (chip.curve?.length) element.append(drawCurve(chip.curve));
  if (chip.hidden) element.append(make("span", "wcr-unseen", ` ${say("(hidden)")}`));
  if (chip.comment) element.append(make("span", "wcr-unseen", ` ${say("(comment)")}`));
  if (chip.phrase) {
    element.append(make("span", "wcr-unseen", ` ${say(`(phrase ${chip.phrase})`)}`));
    element.style.setProperty("--wcr-phrase", css(phraseColor(chip.phrase, theme)));
  }
  if (chip.end > chip.start) Object.assign(element.dataset, { start: chip.start, end: chip.end });
  const isEmbedding = typeof chip.ids[0] === "string";
  const classes = { bound: chip.phrase, hidden: chip.hidden, tag: isTag, comment: chip.comment, embedding: isEmbedding, joins: chip.joins, joined: isJoined };
  for (const [name, holds] of Object.entries(classes)) if (holds) element.classList.add(`wcr-${name}`);
  if (chip.problems.length) {
    element.classList.add("wcr-problem-here");
    element.tabIndex = 0;
    element.dataset.problem = chip.problems.map((issue) => say(issues[issue].message)).join("\n");
    element.setAttribute("aria-describedby", chip.problems.map(idOf).join(" "));
    text.style.setProperty("--wcr-chip-wave", css(waveColor(background, theme)));
  }
  return element;
}

const kindOf = (weight) => (weight < 0 ? "negative" : weight < 1 ? "down" : weight > 1 ? "up" : "plain");

/** The line below the chips: how full, what reads it, and everything else there is to say. */
function countLine({ sections, hasScheme, how, total, notes = [], message }) {
  const bar = make("div", "wcr-bar");
  const views = sections.map((section) => section.view);
  if (isAlone(sections)) {
    bar.append(...labels(sections[0].label), ...counts(views[0], total));
  } else if (views.length) {
    const numMore = views.at(-1).num_more ?? 0;
    const numTexts = texts(views).length + numMore;
    if (numTexts > 1) bar.append(make("span", "wcr-count", say(counted(numTexts, "text"))));
    const numUnseen = texts(views.slice(MAX_SECTIONS)).length + numMore;
    if (total) bar.append(make("span", "wcr-count", total));
    if (numUnseen) bar.append(make("span", "", say(`${counted(numUnseen, "more text")} not shown`)));
  }
  if (message) bar.append(make("span", "wcr-message", say(message)));
  if (views.length && (total === undefined || hasScheme)) {
    const { text, title } = optionTexts(views[0], hasScheme, how);
    bar.append(make("span", "wcr-options", text, { title: say(title) }));
  }
  const numHidden = numTokens(views.flatMap(itemsOf).filter((item) => item.hidden));
  const others = new Set(views.flatMap((view) => view.left_to_host ?? []));
  const extras = [
    ...(numHidden ? [`${counted(numHidden, "token")} hidden`] : []),
    ...new Set(views.map((view) => view.bound).filter(Boolean)),
    ...[...others].map((name) => `${name} is encoded by ComfyUI itself`),
    ...new Set(views.flatMap((view) => view.notes ?? [])),
    ...notes,
  ];
  bar.append(...extras.map((text) => make("span", "wcr-extra", say(text))));
  return bar;
}

/** Fill level of the last chunk, by the host's own count if there is one; and encodings, if more than usual. */
function counts(view, total = say(countText(view))) {
  const encodings = view.encodings ? [make("span", "wcr-extra", say(view.encodings))] : [];
  const meters = view.chunks.at(-1).capacity === null ? [] : [meter(view)];
  return [...meters, ...(total ? [make("span", "wcr-count", say(total))] : []), ...encodings];
}

function meter(view) {
  const { num_tokens: count, capacity } = view.chunks.at(-1);
  const element = make("span", "wcr-meter", "", { ariaHidden: "true" });
  element.appendChild(make("i")).style.width = `${Math.min(100, (100 * count) / capacity)}%`;
  return element;
}

function moreTokens(number, onMore) {
  const row = make("div", "wcr-more", say(`… ${counted(number, "more token")}`));
  const button = make("button", "wcr-button", say("Show all"), { type: "button" });
  button.addEventListener("click", onMore);
  row.append(button);
  return row;
}

/** Chips with a position in the text can have the focus; one of each text is reached by the Tab key. */
function letChipsHaveFocus(scroll) {
  for (const section of scroll.querySelectorAll(".wcr-section")) {
    for (const [index, chip] of section.querySelectorAll(".wcr-chip[data-start]").entries()) {
      chip.dataset.section = section.dataset.section;
      chip.classList.add("wcr-editable");
      chip.tabIndex = index && chip.tabIndex < 0 ? -1 : 0;
    }
  }
}

/** The chip at a position in a text, or with the number of a word that is offered. */
function chipAt(box, { section, start, text, word }) {
  if (word) return box.querySelector(`.wcr-offered[data-text="${text}"][data-word="${word}"]`);
  const chips = [...box.querySelectorAll(`.wcr-editable[data-section="${section}"]`)];
  return chips.find((chip) => Number(chip.dataset.start) <= Number(start) && Number(start) < Number(chip.dataset.end));
}

/** Make scrolling elements reachable by keyboard. */
function markScrolling(box) {
  for (const part of box.querySelectorAll(".wcr-scroll, .wcr-problems")) {
    if (part.scrollHeight > part.clientHeight) part.tabIndex = 0;
    else part.removeAttribute("tabindex");
  }
}
