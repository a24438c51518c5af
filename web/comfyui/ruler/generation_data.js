/** Generation data in a prompt box, of A1111 and others: which text is some, and splitting it into two prompts and settings. */

import { replaceText } from "./boxes.js";
import { copyText } from "./elements.js";
import { say } from "./language.js";

/** Code of the problem that a text is more than a prompt (weighting/syntax/slips.py). */
const GENERATION_DATA = "generation-data";
/** A setting that a picture's data has. */
const STEPS = /\bsteps"?\s*:\s*\d/i;

/** Whether the text of a view is generation data. */
export const isGenerationData = ({ issues }) => issues.some(({ code }) => code === GENERATION_DATA);

/** Whether it is that of a picture. */
export const isPicture = (view) => STEPS.test(view.text) && isGenerationData(view);

/**
 * Text of the button that splits generation data.
 * @param {{node: object | null, isNegative: boolean}} partner The node with the other prompt (partner.js).
 */
export function splitText({ node, isNegative }) {
  const name = isNegative ? "prompt" : "negative prompt";
  return node ? `Split: ${name} to “${node.title}”` : `Split, copy the ${name}`;
}

/**
 * Put the prompts in generation data into boxes and those of the other prompt.
 * @param {import("./boxes.js").Box[]} boxes The boxes with the data.
 * @param {() => {node: object | null, isNegative: boolean}} partnerOf Gives the node with the other prompt.
 * @param {import("./node_ruler.js").Host} host The page.
 * @returns {Promise<{lost: string, settings: [string, string][]} | null>} What is lost, and the settings by their names; null
 *   if the text has changed meanwhile.
 */
export async function split(boxes, partnerOf, host) {
  const text = String(boxes[0].widget.value);
  const data = await host.takeApart(text);
  if (boxes.some(({ widget }) => widget.value !== text)) return null; // typed on meanwhile
  const { node, isNegative } = partnerOf();
  const [own, other] = isNegative ? [data.negative, data.prompt] : [data.prompt, data.negative];
  const name = isNegative ? "Prompt" : "Negative prompt";
  const settings = Object.entries(data.settings);
  if (other) settings.unshift([say(name), node ? `→ ${node.title}` : await copied(other)]);
  if (other && node) for (const box of host.boxesOf(node)) replaceAll(box, other);
  for (const box of boxes) replaceAll(box, own);
  host.changed();
  return { lost: data.problems.map(say).join(" "), settings };
}

const replaceAll = (box, text) => replaceText(box, { start: 0, end: String(box.widget.value ?? "").length, text });

/** Copy a text; what to say of that. */
async function copied(text) {
  if (!(await copyText(text))) throw new Error("This page may not copy: nothing was changed");
  return say("copied");
}
