/**
 * A prompt box as ComfyUI's page sends it: without comments, and `{a|b}` replaced by one of its choices. By
 * the rules of processDynamicPrompt in ComfyUI's front end 1.27 to 1.47, which chooses at random; here it is the
 * first.
 */

/**
 * The text that a run would read.
 * @param {string} text As typed.
 * @returns {{text: string, hasChoice: boolean}} The text, and whether a run may read another one.
 */
export function hostText(text) {
  let hasChoice = false;
  const resolve = (input) => {
    const source = input.replace(COMMENT, "");
    let result = "";
    let i = 0;
    while (i < source.length) {
      const character = source[i++];
      if (character === "\\") result += character + (source[i++] ?? "");
      else if (character !== "{") result += character;
      else {
        const block = choices(source, i);
        hasChoice ||= block.options.length > 1;
        result += resolve(block.options[0]);
        i = block.end;
      }
    }
    return result.replace(/\\([{}|])/g, "$1");
  };
  return { text: resolve(text), hasChoice };
}

const COMMENT = /\/\*[\s\S]*?\*\/|\/\/.*/g;

/**
 * Comments that the page takes out of a prompt.
 * @param {string} text As typed.
 * @returns {{text: string, at: number}[]} Each with its place in the text that a run would read; none if the page changes
 *   more in it.
 */
export function commentsOf(text) {
  if (/[{}\\]/.test(text)) return [];
  let length = 0;
  return [...text.matchAll(COMMENT)].map(({ 0: comment, index }) => {
    const at = index - length;
    length += comment.length;
    return { text: comment, at };
  });
}

/** Of the comments of a box, those in the part of its prompt that a view shows; `views` are of all parts. */
export function ofPart(view, views, comments) {
  const places = (branch) =>
    views
      .filter((one) => one.branch === branch)
      .flatMap(({ chunks }) => chunks.flatMap(({ chips }) => chips))
      .filter(({ start, end, comment }) => end > start && !comment)
      .map(({ start }) => start);
  const later = views.map(({ branch }) => branch).filter((branch) => branch > view.branch);
  const from = view.branch ? Math.min(...places(view.branch)) : 0;
  const to = Math.min(...later.flatMap(places));
  return comments.filter(({ at }) => at >= from && at < to);
}

/** A view with chips for comments that the server has not seen. */
export function withComments(view, comments) {
  if (!comments.length) return view;
  const chunks = view.chunks.map((chunk) => ({ ...chunk, chips: [...chunk.chips] }));
  for (const { text, at } of comments) {
    const isBehind = ({ start, end, comment }) => end > start && !comment && start >= at;
    const chunk = chunks.find(({ chips }) => chips.some(isBehind)) ?? chunks.at(-1);
    const index = chunk.chips.findIndex(isBehind);
    const chip = { text, note: "", weight: 1, ids: [], start: 0, end: 0, joins: false, hidden: false, problems: [], comment: true };
    chunk.chips.splice(index < 0 ? chunk.chips.length : index, 0, chip);
  }
  return { ...view, chunks };
}

/** The choices of a block whose bracket is before `start`, and where the text continues. */
function choices(source, start) {
  const options = [""];
  let depth = 0;
  let i = start;
  while (i < source.length) {
    const character = source[i++];
    if (character === "}" && depth-- === 0) break;
    if (character === "|" && depth === 0) options.push("");
    else options[options.length - 1] += character === "\\" ? character + (source[i++] ?? "") : character;
    if (character === "{") depth += 1;
  }
  return { options, end: i };
}

/** Whether a node reads braces as its own syntax has them, so that its prompt boxes are to be sent as typed. */
export const keepsBraces = (node) => node.widgets?.find(({ name }) => name === "syntax")?.value === "novelai";

/** Send the prompt boxes of a node of ours as typed while its syntax reads braces. */
export function sendBraces(node) {
  for (const widget of node.widgets?.filter(({ dynamicPrompts }) => dynamicPrompts) ?? []) {
    const ofHost = widget.serializeValue;
    widget.serializeValue = (...options) => (keepsBraces(node) || !ofHost ? widget.value : ofHost.apply(widget, options));
  }
}
