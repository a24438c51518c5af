/** Words of a prompt that are offered to an input: chosen by a click or a key on a chip of the ruler. */

import { sourceOf } from "./links.js";
import { moveFocus } from "./weight_input.js";

const CHIP = ".wcr-offered";

/** First word of a phrase among words, and the one behind it; null if they are not there one behind the other. */
function placeOf(phrase, words) {
  const wanted = phrase.toLowerCase().split(/\s+/u).filter(Boolean).join(" ");
  for (let start = 0; start < words.length; start += 1) {
    let text = words[start].toLowerCase();
    let end = start + 1;
    while (end < words.length && text.length < wanted.length) text += ` ${words[end++].toLowerCase()}`;
    if (text === wanted) return [start, end];
  }
  return null;
}

/**
 * The words that stand in an input.
 * @param {string} value The input.
 * @param {string[]} words The words of a prompt.
 * @param {boolean} isLines Whether each line of the input has a phrase.
 * @returns {Set<number>} Their numbers.
 */
export function chosenOf(value, words, isLines) {
  const phrases = isLines ? value.split("\n") : [value];
  const places = phrases.map((phrase) => placeOf(phrase, words)).filter(Boolean);
  return new Set(places.flatMap(([start, end]) => Array.from({ length: end - start }, (_, i) => start + i)));
}

/**
 * The input after a word was clicked: that word, or the phrase with it where it stands next to what is chosen.
 * @param {string} value The input.
 * @param {string[]} words The words of a prompt.
 * @param {number} number The word that was clicked.
 * @param {boolean} isLines Whether each line of the input has a phrase.
 * @returns {string} The new value.
 */
export function withWord(value, words, number, isLines) {
  const word = words[number] ?? "";
  if (isLines) {
    const lines = value.split("\n").map((line) => line.trim()).filter(Boolean);
    const others = lines.filter((line) => line.toLowerCase() !== word.toLowerCase());
    return (others.length < lines.length ? others : [...lines, word]).join("\n");
  }
  const place = value.trim() ? placeOf(value, words) : null;
  if (!place) return word;
  const [start, end] = place;
  if (number === end) return words.slice(start, end + 1).join(" ");
  if (number === start - 1) return words.slice(start - 1, end).join(" ");
  return start === number && end === number + 1 ? "" : word;
}

/**
 * Write a word into the input of a node that takes words, or where its value comes from; whether that was done.
 * @param {object} node The node.
 * @param {{name: string, isLines: boolean}} input The input.
 * @param {string[]} words The words of a prompt; none, to empty it.
 * @param {number} number The word that was clicked.
 */
export function writeWord(node, { name, isLines }, words, number) {
  const source = sourceOf(node, name);
  if (source?.places.length !== 1) return false;
  const [{ node: holder, widget }] = source.places;
  widget.value = withWord(String(widget.value ?? ""), words, number, isLines);
  widget.callback?.(widget.value);
  holder.setDirtyCanvas?.(true, true);
  return true;
}

/**
 * Let the chips of a ruler be chosen.
 * @param {HTMLElement} element The ruler.
 * @param {(section: number, number: number) => void} choose Called with the number of a text and of a word in it.
 */
export function addChoosing(element, choose) {
  const chipOf = (event) => event.target.closest?.(CHIP);
  const chosen = ({ dataset }) => choose(Number(dataset.text), Number(dataset.word));
  element.addEventListener("keydown", (event) => {
    const chip = chipOf(event);
    if (!chip) return;
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) moveFocus(element, chip, move, CHIP);
    else if (event.key === "Enter" || event.key === " ") chosen(chip);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  // a node is not dragged by its chips
  element.addEventListener("pointerdown", (event) => chipOf(event) && event.stopPropagation());
  element.addEventListener("click", (event) => chipOf(event) && chosen(chipOf(event)));
}
