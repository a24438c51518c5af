/**
 * What is asked of the server (web/inspection.py) for each class of node. A new node needs an entry here only if it has
 * more than a prompt box `text`.
 */

import { hostText } from "./host_text.js";

/** Longest request that the server answers, in bytes (MAX_BYTES of web/inspection.py). */
const MAX_BYTES = 64 * 1024;

const AFTER_THE_RUN = "shown after the run";

/** The emphasis modes of nodes/a1111.py. */
const EMPHASIS = {
  Original: { syntax: "a1111", scheme: "a1111" },
  "No norm": { syntax: "a1111", scheme: "a1111_no_norm" },
  Ignore: { syntax: "a1111", scheme: "unweighted" },
  None: { syntax: "none", scheme: "unweighted" },
};

/** The mode of a name; of one that is not known here, a request that the server refuses by that name. */
const emphasis = (name) => (Object.hasOwn(EMPHASIS, name) ? EMPHASIS[name] : { syntax: String(name) });

const TEXT = ["text"];

/**
 * By class: `texts` names the prompt boxes; `options` gives the other fields of a request, where `value(name)` is the
 * value of a widget; `hasScheme` says that the node encodes; `links` names inputs without a widget that change what is
 * shown; `rewrites` says that a run shows another text than the one in the box.
 */
const RULES = {
  WeightedCLIPTextEncode: {
    texts: TEXT,
    hasScheme: true,
    options: (value) => ({
      syntax: value("syntax"),
      scheme: value("scheme"),
      normalization: value("normalization"),
      chunking: value("chunking"),
    }),
  },
  WeightedCLIPA1111Encode: {
    texts: TEXT,
    hasScheme: true,
    links: ["sigmas"],
    options: (value) => ({
      ...emphasis(value("emphasis")),
      chunking: "a1111",
      comma_backtrack: value("comma_backtrack"),
      steps: value("steps"),
      counter: value("counter"),
    }),
  },
  WeightedCLIPMaskedBlend: {
    texts: TEXT,
    hasScheme: true,
    options: (value) => ({
      syntax: value("syntax"),
      scheme: "masked_blend",
      law: value("law"),
      mask_method: value("mask_method"),
    }),
  },
  WeightedCLIPSDXLEncode: {
    texts: ["text_g", "text_l"],
    hasScheme: true,
    options: (value) => ({
      syntax: value("syntax"),
      scheme: value("scheme"),
      normalization: value("normalization"),
      chunking: value("chunking"),
    }),
  },
  WeightedCLIPInspect: {
    texts: TEXT,
    options: (value) => ({ syntax: value("syntax"), chunking: value("chunking") }),
  },
  WeightedCLIPRerank: {
    texts: TEXT,
    options: (value) => ({ syntax: value("syntax"), scheme: "unweighted", chunking: "comfy word" }),
  },
  WeightedCLIPConvert: { texts: TEXT, options: (value) => ({ syntax: value("from") }) },
  WeightedCLIPMaskControl: {
    texts: TEXT,
    hasScheme: true,
    options: (value) => ({
      syntax: "comfy",
      hide: value("hide"),
      hidden_from: value("hidden_from"),
      from_phrases: value("from_phrases"),
    }),
  },
  WeightedCLIPLoadPromptLoras: { texts: TEXT, options: () => ({ syntax: "a1111" }) },
};
/** Of every other class of ours. */
const OTHERS = { texts: TEXT, rewrites: true, options: () => ({}) };

/**
 * The rule for a node.
 * @param {object} node Of any class.
 * @returns {object | null} Null for a node without a ruler.
 */
export function ruleOf(node) {
  const { comfyClass } = node;
  if (!comfyClass?.startsWith("WeightedCLIP")) return null;
  const rule = Object.hasOwn(RULES, comfyClass) ? RULES[comfyClass] : OTHERS;
  return rule.texts.every((name) => widgetOf(node, name)) ? rule : null;
}

/**
 * What to ask for a node as it stands.
 * @param {object} node The node.
 * @param {object} rule As `ruleOf` gives it.
 * @returns {{boxes: {name: string, text: string, body: string}[], hasChoice: boolean, notes: string[],
 *   obstacle: string}} A request for each prompt box; whether a run may read another text; what to say beside; and why
 *   nothing can be asked.
 */
export function requestsOf(node, rule) {
  const used = new Set();
  const options = rule.options((name) => {
    used.add(name);
    return widgetOf(node, name)?.value;
  });
  let hasChoice = false;
  const boxes = rule.texts.map((name) => {
    const widget = widgetOf(node, name);
    const typed = String(widget.value ?? "");
    const read = widget.dynamicPrompts ? hostText(typed) : { text: typed, hasChoice: false };
    hasChoice ||= read.hasChoice;
    return { name, text: read.text, body: JSON.stringify({ ...options, text: read.text }) };
  });
  const linked = [...used, ...(rule.links ?? [])].filter((name) => isLinked(node, name));
  const notes = [
    ...(hasChoice ? ["{a|b}: shown with the first choice"] : []),
    ...(linked.length ? [`${linked.join(", ")} linked: exact after the run`] : []),
  ];
  return { boxes, hasChoice, notes, obstacle: obstacle(node, rule, boxes) };
}

function obstacle(node, rule, boxes) {
  const linked = rule.texts.filter((name) => isLinked(node, name));
  if (linked.length) return `${linked.join(", ")} linked: ${AFTER_THE_RUN}`;
  const isLong = boxes.some(({ body }) => new TextEncoder().encode(body).length > MAX_BYTES);
  return isLong ? `longer than ${MAX_BYTES / 1024} KiB: ${AFTER_THE_RUN}` : "";
}

const widgetOf = (node, name) => node.widgets?.find((widget) => widget.name === name);

/** Whether something is connected to an input, or to that of a widget. */
const isLinked = (node, name) =>
  Boolean(node.inputs?.some((slot) => (slot.widget?.name ?? slot.name) === name && slot.link != null));
