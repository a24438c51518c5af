/**
 * Word maps on the node Word Maps: the picture, its words as chips, and where each was read. A chip under the pointer or
 * with the focus shows its word's map over the picture; a place of the picture, by pointer or arrow keys, lists the words
 * by their share there. Knows nothing of ComfyUI; importing it does nothing.
 */

import { CheckedNode } from "./checks.js";
import { dress, pageTheme } from "./colors.js";
import { drawProblems } from "./draw.js";
import { make } from "./elements.js";
import { say } from "./language.js";
import { isLinked, sourceOf } from "./links.js";
import { addChoosing, chosenOf, writeWord } from "./offered.js";

/** Longer side of the picture, in pixels. */
const SIDE = 288;
/** How dark the picture is where a map is 0. */
const DARKEST = 0.85;
/** Words listed for a place. */
const NUM_RANKED = 6;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * @typedef {object} Maps Maps of a run (message_of in hosts/comfy/placing/word_maps.py).
 * @property {string[]} words The words.
 * @property {number} rows Rows of cells.
 * @property {number} columns Columns of cells.
 * @property {number} num_pictures Pictures of the batch, or frames; those behind the ones that are here are not sent.
 * @property {number[][]} largest For each picture the largest share of each word, of all attention.
 * @property {string} maps Base64 of a byte for each picture, word and cell, of the word's largest share.
 * @property {boolean} is_one_scale Whether all words are shown on one scale.
 * @property {({filename: string, subfolder: string, type: string} | null)[]} previews Files of the pictures.
 */

/**
 * Make what shows word maps, which is empty.
 * @param {(file: object) => string} urlOf Gives the address of a file of the server.
 * @param {(word: string, isKept: boolean) => void} [keep] Called with a word whose map is to stay, or no longer.
 */
export function createWordMaps(urlOf, keep = () => {}) {
  const element = make("div", "weighted-clip-ruler");
  const box = element.appendChild(make("div", "wcr-box"));
  const status = element.appendChild(make("div", "wcr-unseen", "", { role: "status" }));
  /** @type {Maps | null} */
  let maps = null;
  let shares = new Uint8Array();
  let picture = 0;
  let image = null;
  /** Number of the word that is shown, of the one that stays, and the place that is asked about. */
  let word = -1;
  let kept = -1;
  let place = null;
  let parts = null;
  /** Elements below the maps. */
  let more = [];

  const numCells = () => maps.rows * maps.columns;
  const shareAt = (number, cell) => {
    const first = (picture * maps.words.length + number) * numCells();
    return (shares[first + cell] / 255) * maps.largest[picture][number];
  };

  function draw() {
    const scroll = parts?.chips.scrollTop ?? 0;
    parts = null;
    paint();
    box.replaceChildren();
    if (maps) drawMaps(scroll);
    box.append(...more);
  }

  function drawMaps(scroll) {
    const canvas = make("canvas", "wcr-map", "", { tabIndex: 0 });
    const scale = SIDE / Math.max(maps.rows, maps.columns);
    Object.assign(canvas, { width: Math.round(maps.columns * scale), height: Math.round(maps.rows * scale) });
    canvas.setAttribute("role", "img");
    const chips = make("div", "wcr-chips wcr-scroll", "", { role: "group", ariaLabel: say("Words") });
    const ranked = make("div", "wcr-ranked", "", { ariaHidden: "true" });
    parts = { canvas, chips, ranked };
    chips.append(...maps.words.map(chipOf));
    const inner = box.appendChild(make("div", "wcr-section"));
    const head = inner.appendChild(make("div", "wcr-head"));
    const shown = maps.previews.length;
    if (maps.num_pictures > 1) {
      for (const [step, sign, name] of [[-1, "‹", "Previous picture"], [1, "›", "Next picture"]]) {
        const button = head.appendChild(make("button", "wcr-button", sign, { type: "button", ariaLabel: say(name) }));
        button.disabled = !(picture + step >= 0 && picture + step < shown);
        button.addEventListener("click", () => turnTo(picture + step));
      }
      head.append(make("span", "wcr-label", say(`picture ${picture + 1} of ${maps.num_pictures}`)));
    }
    head.append(make("span", "", say(maps.is_one_scale ? "one scale for all words" : "each word on its own scale")));
    inner.append(chips, canvas, ranked);
    canvas.addEventListener("pointermove", (event) => {
      const { left, top, width, height } = canvas.getBoundingClientRect();
      const at = (given, start, size, number) => Math.min(number - 1, Math.max(0, Math.floor(((given - start) / size) * number)));
      ask([at(event.clientX, left, width, maps.columns), at(event.clientY, top, height, maps.rows)]);
    });
    canvas.addEventListener("pointerleave", () => canvas !== document.activeElement && ask(null));
    canvas.addEventListener("focus", () => ask(place ?? [maps.columns >> 1, maps.rows >> 1], true));
    canvas.addEventListener("blur", () => ask(null));
    canvas.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step || !place) return;
      event.preventDefault();
      event.stopPropagation();
      const moved = (index, number) => Math.min(number - 1, Math.max(0, place[index] + step[index]));
      ask([moved(0, maps.columns), moved(1, maps.rows)], true);
    });
    chips.scrollTop = scroll;
    mark();
    render();
  }

  function chipOf(text, number) {
    const chip = make("button", "wcr-chip wcr-editable", "", { type: "button" });
    chip.append(make("span", "wcr-text", text));
    const show = (which) => () => {
      word = which;
      mark();
      render();
    };
    chip.addEventListener("pointerenter", show(number));
    chip.addEventListener("focus", show(number));
    chip.addEventListener("pointerleave", () => show(kept)());
    chip.addEventListener("blur", () => show(kept)());
    chip.addEventListener("click", () => {
      kept = kept === number ? -1 : number;
      show(kept)();
      keep(text, kept >= 0);
    });
    return chip;
  }

  /** Mark the chip of the word that is shown, and whether it stays. */
  function mark() {
    for (const [number, chip] of [...parts.chips.children].entries()) {
      chip.classList.toggle("wcr-placed", number === word);
      chip.ariaPressed = String(number === kept);
    }
    const what = word < 0 ? say("Picture") : say(`Map of “${maps.words[word]}”`);
    parts.canvas.ariaLabel = what;
  }

  /** Draw the picture, and over it the map of a word. */
  function render() {
    if (!parts) return;
    const { canvas } = parts;
    const { width, height } = canvas;
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, width, height);
    const isDrawn = image?.complete && image.naturalWidth > 0;
    if (isDrawn) pen.drawImage(image, 0, 0, width, height);
    if (word >= 0 || !isDrawn) pen.drawImage(shadeOf(word, isDrawn ? DARKEST : 1), 0, 0, width, height);
    if (!place) return;
    const [cellWidth, cellHeight] = [width / maps.columns, height / maps.rows];
    for (const [color, grown] of [["#000", 1], ["#fff", 0]]) {
      pen.strokeStyle = color;
      pen.strokeRect(place[0] * cellWidth - grown, place[1] * cellHeight - grown, cellWidth + 2 * grown, cellHeight + 2 * grown);
    }
  }

  /** A canvas of a pixel for each cell, black and the more opaque the less a word was read there; all words for -1. */
  function shadeOf(number, darkest) {
    const cells = Array.from({ length: numCells() }, (_, cell) =>
      number >= 0 ? shareAt(number, cell) : maps.words.reduce((sum, _, one) => sum + shareAt(one, cell), 0),
    );
    const isOfAll = maps.is_one_scale && number >= 0;
    const low = maps.is_one_scale ? 0 : Math.min(...cells);
    const high = isOfAll ? Math.max(...maps.largest[picture]) : Math.max(...cells);
    const small = make("canvas", "", "", { width: maps.columns, height: maps.rows });
    const data = new ImageData(maps.columns, maps.rows);
    for (const [cell, share] of cells.entries()) {
      data.data[4 * cell + 3] = Math.round(255 * darkest * (1 - (high > low ? (share - low) / (high - low) : 0)));
    }
    small.getContext("2d").putImageData(data, 0, 0);
    return small;
  }

  /** List the words by their share at a place; none for null. */
  function ask(at, isTold = false) {
    place = at;
    render();
    const cell = at && at[1] * maps.columns + at[0];
    const found = at ? maps.words.map((text, number) => [text, shareAt(number, cell)]) : [];
    const texts = found.sort((one, other) => other[1] - one[1]).slice(0, NUM_RANKED);
    const said = texts.map(([text, share]) => `${text} ${(100 * share).toFixed(1)} %`);
    parts.ranked.replaceChildren(...said.map((text) => make("span", "", text)));
    if (isTold) status.textContent = said.join(", ");
  }

  /** Show another picture of the batch. */
  function turnTo(number) {
    picture = number;
    const file = maps.previews[number];
    image = file ? Object.assign(new Image(), { src: urlOf(file), onload: render }) : null;
    place = null;
    draw();
  }

  function paint() {
    const theme = pageTheme(box);
    if (theme) dress(element, theme, ["text", "muted", "line", "faint", "surface", "accent"]);
  }

  return {
    element,
    box,
    /** Show the maps of a run; null for none. Below them stands what is known before a run. */
    show(given, below = []) {
      const old = more;
      more = below;
      if (given && given === maps) {
        for (const one of old) one.remove();
        box.append(...more);
        return;
      }
      maps = given;
      shares = given ? Uint8Array.from(atob(given.maps), (character) => character.charCodeAt(0)) : new Uint8Array();
      [picture, word, kept] = [0, -1, -1];
      if (given) turnTo(0);
      else draw();
    },
    refresh: paint,
    remove() {
      image = null;
    },
  };
}

/** Shows the maps of a node's last run and, before it, the words that are watched. */
export class NodeMaps extends CheckedNode {
  #maps = null;

  constructor(node, rule, host) {
    super(node, rule, host, createWordMaps(host.urlOf, (word, isKept) => this.#write(isKept ? [word] : [], 0)));
    addChoosing(this.drawing.element, (_, number) => this.#write(this.checks.words[0], number));
  }

  /** Whether a value comes from another node, which does not report its changes. */
  get isLinked() {
    return this.rule.checked.some((name) => isLinked(this.node, name));
  }

  /** Show the maps of a run. */
  executed([maps]) {
    this.#maps = maps;
    this.show();
  }

  /** Show the maps of an earlier run, kept by the page. */
  restored(maps) {
    this.executed(maps);
  }

  /** Write one of some words into the node; without words, nothing. */
  #write(words, number) {
    if (writeWord(this.node, this.rule.words, words, number)) this.host.changed();
    this.check();
  }

  show() {
    const [words = []] = this.#maps ? [] : this.checks.words;
    const value = sourceOf(this.node, this.rule.words.name)?.value;
    const below = [];
    if (words.length) {
      const chips = make("div", "wcr-chips", "", { role: "group", ariaLabel: say("Words") });
      const chosen = chosenOf(String(value ?? ""), words, false);
      for (const [word, text] of words.entries()) {
        const chip = chips.appendChild(make("button", "wcr-chip wcr-offered", text, { type: "button" }));
        chip.ariaPressed = String(chosen.has(word));
        Object.assign(chip.dataset, { text: 0, word });
      }
      below.push(make("div", "wcr-section"));
      below[0].append(chips);
    }
    const { rows } = this.checks;
    if (rows.length) below.push(drawProblems(rows));
    this.drawing.show(this.host.isOn() ? this.#maps : null, below);
  }
}
