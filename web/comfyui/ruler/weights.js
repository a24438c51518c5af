/**
 * Changing the weight of a word in the text of a prompt, in the syntax that the prompt is read in. Pure functions: text
 * in, the stretch to replace and its replacement out.
 */

/** Form of a group in each syntax with weights. */
const FORMS = {
  comfy: (inside, weight) => `(${inside}:${weight})`,
  a1111: (inside, weight) => `(${inside}:${weight})`,
  compel: (inside, weight) => `(${inside})${weight.includes(".") ? weight : `${weight}.0`}`,
  novelai: (inside, weight) => `${weight}::${inside}::`,
};
/** Weight of a bare pair of brackets. */
const BARE = { comfy: 1.1, a1111: 1.1, compel: 1 };

/** End of a word. In compel brackets must follow whitespace, so a word extends up to that. */
const BETWEEN_WORDS = /[\s.,\\/!?%^*;:{}=\-_`~()[\]<>|"'+#]/u;
const BETWEEN_PARTS = /[\s,()"]/u;
/** Whitespace and, in compel, signs around a word that do not belong to it; the word; and its weight in compel. */
const PLAIN_WORD = /^(\s*)([^]*?)()\s*$/u;
const COMPEL_WORD = /^([\s.;:!?'`~]*)([^]*?)(\++|-+|)[\s.;:!?'`~]*$/u;

const NUMBER_INSIDE = /^([^]*):\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*$/u;
const WEIGHT_BEHIND = /^(?:\++|-+(?!\d)|[+-]?(?:\d+\.\d*|\.\d+)|-?\d+)/u;
/** Text before brackets in compel that contain no text, or only prompts. */
const CALL = /(?:\.\s*(?:blend|and|add|attend)|withLora|useLora)\s*$/u;
/** NovelAI's groups without others inside: a number, or braces and square brackets of any depth. */
const NOVELAI_NUMBER = /(?<![\p{L}\p{N}_.:])(-?(?:\d+\.?\d*|\.\d+)::)([^:{}[\]]*)::/gu;
const NOVELAI_BRACKETS = /(?<![{[])(\{+|\[+)([^:{}[\]]*)(\}+|\]+)/gu;
const NOVELAI_FACTOR = 1.05;
const TAG = /<\w+:[^<>]*>/gu;
const TAG_NUMBER = /^(<\w+:[^:>]+:)([+-]?(?:\d+\.?\d*|\.\d+))([^]*)$/u;

/**
 * @typedef {object} Change Change of a weight: `by` is added to it, or `to` replaces it.
 * @property {number} [by]
 * @property {number} [to]
 */

/**
 * Change a weight.
 * @param {string} text The prompt.
 * @param {number} start Start of the selection, or the place of the caret.
 * @param {number} end End of the selection.
 * @param {string} syntax The syntax that the prompt is read in.
 * @param {Change} change Change of the weight.
 * @returns {{start: number, end: number, text: string, inside: [number, number], weight: number} | null} The stretch to
 *   replace, what to put there, where in it the weighted text then stands, and its weight. Null where there is nothing
 *   to weigh, or the syntax has no weights.
 */
export function reweighted(text, start, end, syntax, change) {
  if (!FORMS[syntax]) return null;
  const tag = syntax === "a1111" && tagAt(text, start, end);
  if (tag) return changedTag(tag, change);
  if (syntax === "compel" && isInCall(text, start, end)) return null;
  const found = groupAt(text, start, end, syntax) ?? wordAt(text, start, end, syntax);
  if (!found) return null;
  const weight = changed(found.weight, change, syntax);
  const inside = text.slice(found.inside[0], found.inside[1]);
  const isPlain = weight === 1;
  const written = isPlain ? inside : FORMS[syntax](inside, String(weight));
  const offset = isPlain ? 0 : written.indexOf(inside, syntax === "novelai" ? written.indexOf("::") : 1);
  return { start: found.start, end: found.end, text: written, inside: [offset, offset + inside.length], weight };
}

/** The weight at a position that would be changed there; null if there is none. */
export function weightAt(text, start, end, syntax) {
  return reweighted(text, start, end, syntax, { by: 0 })?.weight ?? null;
}

/** Four digits are more than the steps need; compel takes no weight below 0. */
function changed(weight, { by = 0, to }, syntax) {
  const next = Number((to ?? weight + by).toFixed(4));
  return syntax === "compel" ? Math.max(0, next) : next;
}

/** The nearest group around the caret, or the group whose inside is selected; null if there is none. */
function groupAt(text, start, end, syntax) {
  const group = syntax === "compel" ? compelGroup : numberedGroup;
  const groups =
    syntax === "novelai" ? novelaiGroups(text) : pairsOf(text).map(([open, close]) => group(text, open, close, syntax));
  const around = groups.filter((one) => one && one.start <= start && end <= one.end);
  const nearest = around.reduce((best, one) => (best && best.start > one.start ? best : one), null);
  if (!nearest || start === end) return nearest;
  return start <= nearest.inside[0] && end >= nearest.inside[1] ? nearest : null;
}

function numberedGroup(text, open, close, syntax) {
  const number = NUMBER_INSIDE.exec(text.slice(open + 1, close));
  const [end, weight] = number ? [open + 1 + number[1].length, Number(number[2])] : [close, BARE[syntax]];
  return { start: open, end: close + 1, inside: [open + 1, end], weight };
}

/** Brackets of a call, such as .blend(1, 2), and those it is called on are not a group. */
function compelGroup(text, open, close) {
  if (/[\p{L}\p{N}_]/u.test(text[open - 1] ?? "") || /^\s*\.\s*[a-z]/iu.test(text.slice(close + 1))) return null;
  const behind = WEIGHT_BEHIND.exec(text.slice(close + 1))?.[0] ?? "";
  return { start: open, end: close + 1 + behind.length, inside: [open + 1, close], weight: compelWeight(behind) };
}

function compelWeight(written) {
  if (/^\++$/u.test(written)) return 1.1 ** written.length;
  if (/^-+$/u.test(written)) return 0.9 ** written.length;
  return written ? Number(written) : BARE.compel;
}

function novelaiGroups(text) {
  const numbers = [...text.matchAll(NOVELAI_NUMBER)].map((match) => [match, Number(match[1].slice(0, -2))]);
  const brackets = [...text.matchAll(NOVELAI_BRACKETS)]
    .filter(([, open, , close]) => open.length === close.length && (open[0] === "{") === (close[0] === "}"))
    .map((match) => [match, NOVELAI_FACTOR ** (match[1][0] === "{" ? match[1].length : -match[1].length)]);
  const outer = [...numbers, ...brackets].filter(([{ index }]) => !isInNovelaiMarks(text, index));
  return outer.map(([{ index, 0: whole, 1: before, 2: inside }, weight]) => {
    const first = index + before.length;
    return { start: index, end: index + whole.length, inside: [first, first + inside.length], weight };
  });
}

/** Whether a place is inside NovelAI's marks, where a number would end those around it. */
function isInNovelaiMarks(text, start) {
  const marks = [...text.slice(0, start).matchAll(/((?:\d\.?|\.\d+)?::)|[{}[\]]/gu)].map(([mark]) => mark);
  const opened = marks.slice(marks.lastIndexOf("::") + 1);
  return opened.filter((mark) => !"}]".includes(mark)).length > opened.filter((mark) => "}]".includes(mark)).length;
}

/** The selection, or the word around the caret, or null. */
function wordAt(text, start, end, syntax) {
  if (syntax === "novelai" && isInNovelaiMarks(text, start)) return null;
  const isCompel = syntax === "compel";
  const border = isCompel ? BETWEEN_PARTS : BETWEEN_WORDS;
  let [first, last] = [start, end];
  if (start === end || isCompel) {
    while (first > 0 && !border.test(text[first - 1])) first -= 1;
    while (last < text.length && !border.test(text[last])) last += 1;
  }
  const [, before, word, signs] = (isCompel ? COMPEL_WORD : PLAIN_WORD).exec(text.slice(first, last));
  if (!word || !isBalanced(word)) return null;
  if (isCompel && text[last] === "(") return null; // the name of a call
  first += before.length;
  const inside = [first, first + word.length];
  return { start: first, end: inside[1] + signs.length, inside, weight: compelWeight(signs) };
}

const isBalanced = (text) => 2 * pairsOf(text).length === [...text.replace(/\\./gsu, "").matchAll(/[()]/gu)].length;

/** Whether the nearest brackets belong to a call whose values are not text. */
function isInCall(text, start, end) {
  const opened = pairsOf(text).filter(([open, close]) => open < start && end <= close);
  return CALL.test(text.slice(0, Math.max(0, ...opened.map(([open]) => open))));
}

/** Positions of opening and closing brackets, without escaped ones. */
function pairsOf(text) {
  const open = [];
  const pairs = [];
  for (const { index, 0: bracket } of text.matchAll(/\\.|[()]/gsu)) {
    if (bracket === "(") open.push(index);
    else if (bracket === ")" && open.length) pairs.push([open.pop(), index]);
  }
  return pairs;
}

/** The tag of a LoRA at a place. */
function tagAt(text, start, end) {
  return [...text.matchAll(TAG)].find(({ index, 0: tag }) => index <= start && end <= index + tag.length);
}

function changedTag({ index, 0: tag }, change) {
  const found = TAG_NUMBER.exec(tag);
  if (!found) return null;
  const weight = changed(Number(found[2]), change, "a1111");
  return { start: index, end: index + tag.length, text: `${found[1]}${weight}${found[3]}`, inside: [1, 1], weight };
}
