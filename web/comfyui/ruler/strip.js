/**
 * The token strip as data: which chips and chunk borders stand in it, in which order. The same rules as those of the
 * drawn pictures (web/pictures/strip.py). Reads a view (weighting/view.py), whose offsets count UTF-16 units as
 * JavaScript does.
 */

const MAX_TEXT = 300;

/**
 * Chips and chunk borders of a text in reading order.
 * @param {object} view The view.
 * @returns {object[]} `{kind: "chip", text, weight, count, isHidden, isEmbedding, problems, joins, isJoined, note}`,
 *   where `problems` holds indices of `view.issues`, `joins` says that it goes on with the word of the chip before it
 *   and `isJoined` that the next one does so; and `{kind: "border", text, isBreak}` at the end of every chunk but the
 *   last, and there after a BREAK too.
 */
export function stripItems(view) {
  const tokens = view.chunks.flatMap((chunk) => chunk.tokens);
  const problems = problemsOfTokens(tokens, view.issues);
  const breaks = view.breaks.map(([start]) => start);
  const items = [];
  let index = 0; // of the next token
  for (const [number, chunk] of view.chunks.entries()) {
    items.push(...joined(chipsOf(chunk.tokens, problems.slice(index))));
    index += chunk.tokens.length;
    // a break ends this chunk if it stands before the next token; each break ends one chunk
    const hasBreak = breaks.length > 0 && breaks[0] < (tokens[index]?.start ?? Infinity);
    if (hasBreak) breaks.shift();
    if (hasBreak || number < view.chunks.length - 1) {
      items.push({ kind: "border", text: `${chunk.num_tokens} / ${chunk.capacity}`, isBreak: hasBreak });
    }
  }
  return items;
}

/**
 * Which problems each token has.
 * @param {object[]} tokens All tokens of a text.
 * @param {object[]} issues Its problems.
 * @returns {number[][]} For each token, indices of the issues that overlap it. An issue about syntax, which has no
 *   token, stands at the next token, or else at the last one.
 */
export function problemsOfTokens(tokens, issues) {
  const found = tokens.map(() => []);
  if (!tokens.length) return found;
  // spans never go backwards; a token without a place, which says 0, is taken to stand where the one before it does
  const starts = runningMaximum(tokens.map((token) => token.start));
  const ends = runningMaximum(tokens.map((token) => token.end));
  for (const [number, issue] of issues.entries()) {
    const first = firstWhere(ends, (end) => end > issue.start);
    const behind = firstWhere(starts, (start) => start >= issue.end);
    if (first < behind) for (let i = first; i < behind; i++) found[i].push(number);
    else found[Math.min(first, tokens.length - 1)].push(number);
  }
  return found;
}

/**
 * A weight in as few digits as say enough.
 * @param {number} weight Any number.
 * @returns {string} 1.4, 0.91, 1.0004, -0.5, 1e30
 */
export function weightText(weight) {
  const size = Math.abs(weight);
  if (size >= 1000 || (size > 0 && size < 1e-4)) return weight.toExponential(1).replace(".0e", "e").replace("e+", "e");
  if (size > 0 && size < 0.01) return String(Number(weight.toPrecision(2)));
  const short = String(Number(weight.toFixed(2)));
  return short === "1" ? String(Number(weight.toPrecision(6))) : short;
}

/** Chips of one chunk; `problems` are those of its tokens and of all that follow. */
function chipsOf(tokens, problems) {
  const chips = [];
  let previous = null;
  for (const [index, token] of tokens.entries()) {
    if (previous && isSamePlace(previous, token)) {
      const last = chips.at(-1);
      last.count += 1;
      last.problems = [...new Set([...last.problems, ...problems[index]])];
    } else {
      chips.push({
        kind: "chip",
        text: shown(token),
        weight: token.weight,
        count: 1,
        isHidden: Boolean(token.hidden),
        isEmbedding: Boolean(token.embedding),
        problems: problems[index],
        joins: previous !== null && isOneWord(previous, token),
        isJoined: false,
        note: "",
      });
    }
    previous = token;
  }
  return chips;
}

/** The same chips, each knowing whether the next one goes on with its word, and with the small text behind its text. */
function joined(chips) {
  for (const [index, chip] of chips.entries()) {
    const next = chips[index + 1];
    chip.isJoined = Boolean(next?.joins);
    // pieces of a word that weigh the same say so once
    const hasWeight = chip.weight !== 1 && !(chip.isJoined && next.weight === chip.weight);
    chip.note = [chip.count > 1 ? `×${chip.count}` : "", hasWeight ? weightText(chip.weight) : ""].join(" ").trim();
  }
  return chips;
}

function shown(token) {
  const text = token.text.trim().replace(/\s+/g, " ") || token.embedding || (token.id === null ? "?" : `#${token.id}`);
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text;
}

/** Whether two tokens are parts of one piece of text: bytes of a character, vectors of an embedding. */
const isSamePlace = (previous, token) =>
  token.end > token.start &&
  previous.start === token.start &&
  previous.end === token.end &&
  previous.weight === token.weight &&
  Boolean(previous.hidden) === Boolean(token.hidden);

/** Whether nothing stands between two tokens and both are letters, digits or other characters; so is `don't`. */
function isOneWord(previous, token) {
  if (previous.end !== token.start || !previous.text || !token.text) return false;
  const before = kindOf(/.$/su.exec(previous.text)[0]);
  return before === kindOf(token.text) || (before === "letter" && /^['’][\p{L}\p{N}_]/u.test(token.text));
}

/** What the first character of a text is. */
const kindOf = (text) => (/^[\p{L}\p{M}]/u.test(text) ? "letter" : /^\p{N}/u.test(text) ? "digit" : "other");

function runningMaximum(numbers) {
  let highest = -Infinity;
  return numbers.map((number) => (highest = Math.max(highest, number)));
}

/** The first index of a sorted list at which a condition holds, else its length. */
function firstWhere(sorted, holds) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(sorted[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}
