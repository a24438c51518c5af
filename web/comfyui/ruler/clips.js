/**
 * The way of a CLIP before a node: through LoRA loaders, clip skip and all else that hands one on, to the Weighted CLIP
 * that serves the node.
 */

import { originOf, valueOf } from "./links.js";

/** The node behind which every prompt box weighs. */
export const SERVER = "WeightedCLIP";
/** Nodes of ComfyUI that change their first CLIP by others; what it is, their output is. */
const MERGES = ["CLIPMergeSimple", "CLIPMergeSubtract", "CLIPMergeAdd"];
/** ComfyUI's node that hands on one of two inputs, by its widget `switch`. */
const SWITCH = "ComfySwitchNode";
/** Types of links: a CLIP; anything; and what packs carry a CLIP in, among other things. */
const CLIP = /(^|,)CLIP(,|$)/u;
const ANY = /^\*$|MATCHTYPE/u;
const PIPE = /PIPE|CONTEXT/u;
/** Maximum number of nodes to follow. */
const MAX_HOPS = 30;

/** The class of a node. */
export const classOf = (node) => node.comfyClass ?? node.type;

/** Whether a type of links is that of a CLIP, perhaps among others. */
export const isClip = (type) => CLIP.test(String(type));

/**
 * Nodes that a node's CLIP comes from: one, but for a switch or a merge.
 * @param {object} node A node.
 * @param {object[]} path The subgraph nodes through which its graph is reached.
 * @returns {({node: object, slot: number, path: object[]} | null)[]} Each as `originOf` gives it; null where it is not known.
 */
export function clipsBefore(node, path) {
  const linked = (node.inputs ?? []).filter(({ link }) => link != null);
  const ofType = (pattern) => linked.filter(({ type }) => pattern.test(String(type)));
  const origins = (slots) => slots.map(({ widget, name }) => originOf(node, widget?.name ?? name, path));
  const chosen = classOf(node) === SWITCH ? valueOf(node, "switch", path)?.widget.value : null;
  if (typeof chosen === "boolean") return origins(linked.filter(({ name }) => name === (chosen ? "on_true" : "on_false")));
  const clips = ofType(CLIP);
  if (clips.length) return origins(MERGES.includes(classOf(node)) ? clips.slice(0, 1) : clips);
  const givesClip = (origin) => CLIP.test(typeOf(origin)) || ANY.test(typeOf(origin));
  const any = origins(ofType(ANY)).filter((origin) => origin && givesClip(origin));
  return any.length ? any : origins(ofType(PIPE));
}

const typeOf = ({ node, slot }) => String(node.outputs?.[slot]?.type);

/**
 * The Weighted CLIP that a node's CLIP comes from: the nearest one.
 * @param {object} node A node.
 * @param {object[]} path The subgraph nodes through which its graph is reached.
 * @param {number} [hops] Number of nodes that may be followed.
 * @returns {{node: object, path: object[]} | null} It, and the way to its graph; null for none, or where it depends.
 */
export function serverOf(node, path, hops = MAX_HOPS) {
  if (!hops) return null;
  const servers = clipsBefore(node, path).map((origin) => {
    if (!origin || classOf(origin.node) === SERVER) return origin;
    return serverOf(origin.node, origin.path, hops - 1);
  });
  const [first] = servers;
  return first && servers.every((one) => one?.node === first.node) ? first : null;
}
