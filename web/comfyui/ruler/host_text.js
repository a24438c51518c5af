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
    const source = input.replace(/\/\*[\s\S]*?\*\/|\/\/.*/g, "");
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
