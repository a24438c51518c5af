/** Draws the views that the test wrote into the page, in every theme, and writes down what there is to see. */
import { contrast, css, parseColor, themeOf, weightColor } from "/comfyui/ruler/colors.js";
import { createRuler } from "/comfyui/ruler/draw.js";
import { commentsOf, hostText, ofPart, withComments } from "/comfyui/ruler/host_text.js";
import { reweighted } from "/comfyui/ruler/weights.js";
import { addStyle } from "/comfyui/ruler/style.js";
import { whenText } from "/comfyui/ruler/words.js";
import { busyResults } from "./busy.js";
import { mapsResults } from "./maps.js";
import { namesResults } from "./names.js";
import { nodeResults } from "./node.js";
import { wait } from "./wait.js";

const THEMES = ["dark", "light", "solarized"];
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const texts = (root, selector) => [...root.querySelectorAll(selector)].map((element) => element.textContent);
const rect = (element) => {
  const { left, top, right, bottom } = element.getBoundingClientRect();
  return [left, top, right, bottom];
};
/** The line below the text of a problem, and its style. */
const waveOf = (text) => {
  if (!text.firstElementChild) return "";
  const { textDecorationLine, textDecorationStyle } = getComputedStyle(text.firstElementChild);
  return `${textDecorationLine} ${textDecorationStyle}`;
};

addStyle();
const cases = read("cases");
const results = { cases: {}, errors: [] };
addEventListener("error", (event) => results.errors.push(String(event.message)));

for (const theme of THEMES) {
  results.cases[theme] = {};
  for (const [name, { views, content = {} }] of Object.entries(cases)) {
    const host = addHost(theme);
    const ruler = createRuler();
    host.append(ruler.element);
    const before = performance.now();
    const sections = views.map((view) => ({ view, label: content.label ?? whenText(view, views) }));
    ruler.show({ sections, ...content });
    const described = { milliseconds: performance.now() - before, ...describe(ruler.element) };
    if (name === "problems") described.tooltips = tooltips(ruler.element);
    if (name === "long") described.afterMore = showAll(ruler.element);
    results.cases[theme][name] = described;
    ruler.remove();
  }
}
results.images = document.querySelectorAll(".host img, .host script").length;
results.colors = colors();
results.hostTexts = read("weights").hostTexts.map(hostText);
results.comments = read("weights").hostTexts.map(commentsOf);
results.commented = commented("a // b\n(c /* d */ e:1.2) // f", [0, 4, 7], [1, 5, 8]);
results.commentsOfParts = commentsOfParts("a // 1\nb AND c // 2\n AND [d // 3\n:e:5]", [[0, 0, 3], [1, 9], [2, 18], [2, 22]]);
results.reweighted = read("weights").reweighted.map(([text, start, end, syntax, change]) => {
  const found = reweighted(text, start, end, syntax, change);
  return found && text.slice(0, found.start) + found.text + text.slice(found.end);
});
results.redrawn = redrawn();
// one text after another: only the last one is told
const spoken = createRuler();
document.body.append(spoken.element);
const status = spoken.element.querySelector("[role=status]");
for (const name of ["plain", "problems"]) spoken.show({ sections: [{ view: cases[name].views[0], label: "" }] });
results.toldAtOnce = status.textContent;
await wait(1500);
results.toldLater = status.textContent;
results.node = await nodeResults();
results.busy = await busyResults();
results.maps = await mapsResults();
results.names = await namesResults();
const element = Object.assign(document.createElement("script"), { type: "application/json", id: "results" });
element.textContent = JSON.stringify(results).replaceAll("<", "\\u003c");
document.body.replaceChildren(element);

/** A place for a ruler in the colours of a theme. */
function addHost(theme) {
  return document.body.appendChild(Object.assign(document.createElement("div"), { className: `host ${theme}` }));
}

function describe(root) {
  const box = root.querySelector(".wcr-box");
  return {
    background: getComputedStyle(box).backgroundColor,
    height: box.offsetHeight,
    sections: [...root.querySelectorAll(".wcr-section")].map((section) => ({
      label: section.querySelector(".wcr-label")?.textContent ?? "",
      head: section.querySelector(".wcr-head")?.textContent ?? "",
      direction: section.querySelector(".wcr-chips")?.dir,
      items: [...section.querySelectorAll(".wcr-chip, .wcr-border")].map(describeItem),
      words: [...section.querySelectorAll(".wcr-word")].map((word) => texts(word, ".wcr-text")),
    })),
    count: root.querySelector(".wcr-bar .wcr-count")?.textContent ?? "",
    bar: [...(root.querySelector(".wcr-bar")?.children ?? [])].map((part) => part.textContent),
    meter: root.querySelector(".wcr-bar .wcr-meter > i")?.style.width ?? "",
    message: root.querySelector(".wcr-message")?.textContent ?? "",
    isStale: box.classList.contains("wcr-stale"),
    problems: texts(root, ".wcr-problems p"),
    places: [...root.querySelectorAll(".wcr-place")].map(describePlace),
    more: root.querySelector(".wcr-more")?.textContent ?? "",
    contrasts: contrasts(root),
  };
}

function describeItem(element) {
  if (element.classList.contains("wcr-border")) return { kind: "border", text: element.textContent };
  const style = getComputedStyle(element);
  const text = element.querySelector(".wcr-text");
  return {
    kind: "chip",
    text: text.textContent,
    note: element.querySelector(".wcr-note")?.textContent ?? "",
    classes: [...element.classList].filter((name) => name !== "wcr-chip").map((name) => name.replace("wcr-", "")),
    background: style.backgroundColor,
    color: style.color,
    line: getComputedStyle(text).textDecorationLine,
    lineStyle: getComputedStyle(text).textDecorationStyle,
    wave: waveOf(text),
    border: style.borderTopStyle,
    tabIndex: element.tabIndex,
    problem: element.dataset.problem ?? "",
    place: element.dataset.place ?? "",
    areas: [...element.querySelectorAll("canvas")].map(sharesOf),
    described: (element.getAttribute("aria-describedby") ?? "").split(" ").filter(Boolean)
      .map((id) => document.getElementById(id)?.textContent ?? null),
    rect: rect(element),
  };
}

function describePlace(row) {
  return {
    texts: texts(row, "span:not(.wcr-time)"),
    label: row.querySelector("canvas")?.ariaLabel ?? "",
    area: row.querySelector("canvas") ? sharesOf(row.querySelector("canvas")) : null,
    size: row.querySelector("canvas") ? rect(row.querySelector("canvas")) : null,
    times: [...row.querySelectorAll(".wcr-time > i")].map((part) => {
      const [whole, own] = [rect(part.parentElement), rect(part)];
      return [0, 2].map((side) => (own[side] - whole[0]) / (whole[2] - whole[0]));
    }),
    isMissed: Boolean(row.querySelector(".wcr-message")),
  };
}

/** The drawn pixels of a small picture: how much of each is filled, row by row. */
function sharesOf(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const shares = Array.from({ length: data.length / 4 }, (_, i) => data[4 * i + 3] / 255);
  return Array.from({ length: canvas.height }, (_, y) => shares.slice(y * canvas.width, (y + 1) * canvas.width));
}

/** The lowest contrast of each kind of text with what is behind it. */
function contrasts(root) {
  const lowest = {};
  for (const element of root.querySelectorAll(".wcr-box *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!hasText || element.classList.contains("wcr-unseen")) continue;
    let behind = element;
    while (parseColor(getComputedStyle(behind).backgroundColor) === null) behind = behind.parentElement;
    const background = parseColor(getComputedStyle(behind).backgroundColor);
    const value = contrast(background, parseColor(getComputedStyle(element).color));
    const name = element.className || element.tagName;
    lowest[name] = Math.min(lowest[name] ?? Infinity, value);
  }
  return lowest;
}

function tooltips(root) {
  const shown = () => document.querySelector(".weighted-clip-tooltip")?.textContent ?? "";
  const result = {};
  const chip = root.querySelector("[data-problem]");
  const fire = (type, Kind, init = {}) => chip.dispatchEvent(new Kind(type, { bubbles: true, ...init }));
  fire("pointerover", PointerEvent);
  result.hover = shown();
  result.place = [rect(chip), rect(document.querySelector(".weighted-clip-tooltip"))];
  fire("pointerout", PointerEvent);
  result.left = shown();
  fire("focusin", FocusEvent);
  result.focus = shown();
  fire("keydown", KeyboardEvent, { key: "Escape" });
  result.escaped = shown();
  return result;
}

function showAll(root) {
  const before = performance.now();
  root.querySelector(".wcr-more button").click();
  return {
    numChips: root.querySelectorAll(".wcr-chip").length,
    more: root.querySelector(".wcr-more")?.textContent ?? "",
    height: root.querySelector(".wcr-box").offsetHeight,
    tabIndex: root.querySelector(".wcr-scroll").tabIndex,
    milliseconds: performance.now() - before,
  };
}

/** Colours by our rules for the themes and weights of the test. */
function colors() {
  const { weights, themes } = read("weights");
  const base = themeOf([0, 0, 0], [255, 255, 255]);
  return themes.map((theme) => weights.map((weight) => weightColor(weight, { ...base, ...theme })));
}

/** A ruler that changes its theme. */
function redrawn() {
  const host = addHost("dark");
  const ruler = createRuler();
  ruler.show({ sections: [{ view: cases.plain.views[0], label: "" }] }); // before it is on the page
  host.append(ruler.element);
  const color = () => {
    ruler.refresh();
    return getComputedStyle(ruler.element.querySelector(".wcr-plain")).backgroundColor;
  };
  const [dark] = [color(), (host.className = "host light")];
  const light = color();
  ruler.show({ sections: [] });
  return { dark, light, empty: ruler.box.offsetHeight, expected: css(themeOf([34, 34, 34], [221, 221, 221]).surface) };
}

/** Comments in each view of a text, which has a branch and the places of its words in the text that a run reads. */
function commentsOfParts(text, parts) {
  const views = parts.map(([branch, ...starts]) => ({
    branch,
    chunks: [{ chips: starts.map((start) => ({ start, end: start + 1 })) }],
  }));
  return views.map((view) => ofPart(view, views, commentsOf(text)).map((comment) => comment.text));
}

/** Chips that are drawn of a text with comments, given the places of its words in the text that a run reads. */
function commented(text, starts, ends) {
  const read = hostText(text).text;
  const chips = starts.map((start, index) => ({
    ...{ text: read.slice(start, ends[index]), note: "", weight: 1, ids: [1], start, end: ends[index], joins: false, hidden: false },
    problems: [],
  }));
  const chunk = { chips, num_tokens: 3, capacity: 75, has_break: false };
  const view = { text: read, chunks: [chunk], issues: [], num_tokens: 3, encodings: "", bound: "", syntax: "comfy", scheme: "comfy" };
  const ruler = createRuler();
  document.body.append(ruler.element);
  ruler.show({ sections: [{ label: "", view: withComments(view, commentsOf(text)) }] });
  const shown = [...ruler.element.querySelectorAll(".wcr-chip")].map((chip) => [
    chip.querySelector(".wcr-text").textContent,
    chip.classList.contains("wcr-comment"),
  ]);
  const count = ruler.element.querySelector(".wcr-count").textContent;
  const isUntouched = chunk.chips.length === 3;
  ruler.remove();
  ruler.element.remove();
  return { shown, count, isUntouched };
}
