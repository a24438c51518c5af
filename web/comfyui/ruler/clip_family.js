/**
 * Text encoder that a node is linked to, as far as the page can know: the type that a loader of ComfyUI is set to. The
 * content of the loader's file is known only after a run.
 */

import { classOf, clipsBefore } from "./clips.js";
import { pathsTo } from "./links.js";

/** Loaders with a widget `type`. */
const LOADERS = ["CLIPLoader", "DualCLIPLoader"];
/** Types with a CLIP-L, -G or -H, by load_text_encoder_state_dicts in ComfyUI 0.29.0. */
const CLIP_TYPES = new Set([
  ...["stable_diffusion", "sdxl", "stable_cascade", "sd3", "flux", "hidream"],
  ...["hunyuan_dit", "hunyuan_video", "kandinsky5", "kandinsky5_image"],
]);
/** Widgets that name a file of the folder text_encoders; our own loader names the folder, too. */
const FILES = { CLIPLoader: ["clip_name"], DualCLIPLoader: ["clip_name1", "clip_name2"], WeightedCLIPLoad: ["file"] };
/** Maximum number of links to follow. */
const MAX_HOPS = 30;

/**
 * The CLIP that a node is linked to.
 * @param {object} node The node.
 * @param {object[]} [path] The subgraph nodes through which its graph is reached.
 * @returns {{key: string, encoder: string, files: string[], note: string}} What changes when the CLIP may be another one;
 *   the loader and its type, such as "CLIPLoader wan", or ""; the files that it is from, such as "text_encoders/a.safetensors",
 *   as far as they are known; and a sentence where CLIP's tokens are not its own, or "".
 */
export function clipOf(node, path = pathsTo(node.graph ?? {})[0] ?? []) {
  const ids = [];
  let source = null;
  let type = null;
  for (let [next] = clipsBefore(node, path); next && ids.length < MAX_HOPS && !type; [next] = clipsBefore(next.node, next.path)) {
    source = next.node;
    ids.push(source.id);
    type = LOADERS.includes(classOf(source)) ? source.widgets?.find((widget) => widget.name === "type")?.value : null;
  }
  const key = JSON.stringify([ids, source?.widgets?.map((widget) => widget.value)]);
  if (typeof type !== "string") return { key, encoder: "", files: filesOf(source), note: "" };
  const note = CLIP_TYPES.has(type) ? "" : `These are CLIP's tokens. A CLIP of type ${type} has its own and may take no weights: known after a run`;
  return { key, encoder: `${classOf(source)} ${type}`, files: filesOf(source), note };
}

/** The files that a loader is set to; none if a link sets it. */
function filesOf(loader) {
  const names = (loader && FILES[classOf(loader)]) ?? [];
  const isLinked = (name) => loader.inputs?.some((slot) => slot.widget?.name === name && slot.link != null);
  const known = names.filter((name) => !isLinked(name));
  const values = known.map((name) => loader.widgets?.find((widget) => widget.name === name)?.value);
  const folder = classOf(loader ?? {}) === "WeightedCLIPLoad" ? "" : "text_encoders/";
  return values.filter((value) => typeof value === "string").map((value) => folder + value);
}
