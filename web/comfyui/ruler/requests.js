/**
 * Request to the server (web/inspection.py) for a node: its class, the text of a prompt box, and the values of the
 * relevant inputs, which the node marks itself (MARK of nodes/base/node.py), and whose meaning the server knows.
 */

import { SERVER } from "./clips.js";
import { commentsOf, hostText } from "./host_text.js";
import { isLinked, sourceOf } from "./links.js";

/** Maximum size of a request, in bytes (MAX_BYTES of web/inspection.py). */
export const MAX_BYTES = 64 * 1024;

const AFTER_THE_RUN = "shown after the run";

/** The option of an input with its role for the ruler. */
const MARK = "weighted_clip_ruler";
/** The option of the inputs of a node whose problems are asked for apart (CHECKED of nodes/base/node.py). */
const CHECKED = "weighted_clip_checked";

/**
 * @typedef {object} Rule
 * @property {string} id The node's class.
 * @property {string[]} texts Names of its prompt boxes.
 * @property {string[]} counts Names of the relevant inputs, also of those without a widget.
 * @property {boolean} hasScheme Whether the node encodes.
 * @property {boolean} hasMaps Whether it shows word maps.
 * @property {string[]} checked Names of the inputs whose problems are asked for apart.
 * @property {{name: string, isLines: boolean} | null} words The input that takes words of its prompts, and whether one a line.
 * @property {boolean} serves Whether it is the node behind which other nodes' prompt boxes weigh.
 * @property {boolean} [isStock] Whether it is a node of ComfyUI's own, whose text is only shown; `id` is then the class of
 *   ours that reads the same.
 * @property {Map<string, import("./served.js").Reader[]>} [readers] The readers of each box, if it is not our node's own;
 *   `id` and `counts` are then those of the node that serves.
 */

/**
 * The rule for a class of nodes.
 * @param {object} definition The class as the server describes it.
 * @returns {Rule | null} Null for a class without a ruler.
 */
export function ruleOf(definition) {
  const { required = {}, optional = {} } = definition.input ?? {};
  const inputs = Object.entries({ ...required, ...optional });
  const marked = (mark) => inputs.filter(([, spec]) => spec[1]?.[MARK] === mark).map(([name]) => name);
  const texts = marked("prompt");
  const hasScheme = (definition.output ?? []).includes("CONDITIONING");
  const hasPlaces = !texts.length && marked("places").length > 0;
  const hasMaps = marked("maps").length > 0;
  // the page gives the button beside an image the options of the image
  const checked = inputs.filter(([, spec]) => spec[1]?.[CHECKED] && spec[0] !== "IMAGEUPLOAD").map(([name]) => name);
  const [wordsName] = marked("words");
  const words = wordsName ? { name: wordsName, isLines: Boolean(inputs.find(([name]) => name === wordsName)[1][1].multiline) } : null;
  const serves = definition.name === SERVER;
  const rule = { id: definition.name, texts, counts: marked("counts"), hasScheme, hasMaps, checked, words, serves };
  return texts.length || hasPlaces || hasMaps || checked.length || serves ? rule : null;
}

/** What reads a prompt box, by its name: the node itself, but for one that is served. */
export const readerOf = (node, rule, name) => rule.readers?.get(name)?.[0] ?? { node, settings: node };

/**
 * Request for a node in its current state.
 * @param {object} node The node.
 * @param {Rule} rule The rule for its class.
 * @param {{encoder: string, files: string[]}[]} [clips] For each box the text encoder that it is linked to, as a view of a
 *   run or a loader names it, or ""; and the files that it is from. A node with several boxes has towers for them that may
 *   differ, so there files are not asked for.
 * @returns {{boxes: {name: string, text: string, body: string, comments: object[]}[], hasChoice: boolean, notes: string[],
 *   origins: string[], obstacle: string}} A request for each prompt box; whether a run may read another text; what to say
 *   beside; where linked texts come from; and why nothing can be asked.
 */
export function requestsOf(node, rule, clips = []) {
  let hasChoice = false;
  const boxes = rule.texts.map((name, index) => {
    const source = sourceOf(node, name);
    const typed = String(source?.value ?? "");
    const read = source?.isPrompt ? hostText(typed) : { text: typed, hasChoice: false };
    hasChoice ||= read.hasChoice;
    const { encoder, files } = clips[index] ?? {};
    const known = { ...(encoder && { encoder }), ...(files?.length && rule.texts.length === 1 && { files }) };
    const values = valuesOf(readerOf(node, rule, name).settings, rule);
    const asked = { node: rule.id, text: read.text, values, ...known };
    const comments = source?.isPrompt ? commentsOf(typed) : [];
    return { name, text: read.text, body: JSON.stringify(asked), comments };
  });
  const all = [...new Set(rule.texts.map((name) => readerOf(node, rule, name).settings))];
  const linked = all.flatMap((one) => rule.counts.filter((name) => isLinked(one, name) && !sourceOf(one, name)));
  const notes = [
    ...(hasChoice ? ["{a|b}: shown with the first choice"] : []),
    ...(linked.length ? [`${linked.join(", ")} linked: exact after the run`] : []),
  ];
  return { boxes, hasChoice, notes, origins: origins(node, rule), obstacle: obstacle(node, rule, boxes) };
}

/** Values of the inputs that count for reading. */
function valuesOf(settings, rule) {
  const widgets = rule.counts.map((name) => widgetOf(settings, name)).filter(Boolean);
  return Object.fromEntries(widgets.map(({ name, value }) => [name, sourceOf(settings, name)?.value ?? value]));
}

/** Node that each linked text comes from. */
function origins(node, rule) {
  const names = new Map();
  for (const name of rule.texts.filter((text) => isLinked(node, text))) {
    const places = sourceOf(node, name)?.places ?? [];
    const origin = places.length > 1 ? `${places.length} nodes` : (places[0]?.node.title ?? "");
    if (origin) names.set(origin, [...(names.get(origin) ?? []), name]);
  }
  return [...names].map(([origin, texts]) => `${texts.join(", ")} linked: comes from ${origin}`);
}

function obstacle(node, rule, boxes) {
  const linked = rule.texts.filter((name) => !sourceOf(node, name));
  if (linked.length) return `${linked.join(", ")} linked: ${AFTER_THE_RUN}`;
  const isLong = boxes.some(({ body }) => new TextEncoder().encode(body).length > MAX_BYTES);
  return isLong ? `longer than ${MAX_BYTES / 1024} KiB: ${AFTER_THE_RUN}` : "";
}

/** The first widget of a node that has one of some names. */
export const widgetOf = (node, ...names) => node.widgets?.find(({ name }) => names.includes(name));
