/** Tells before a run that a linked CLIP is not one of ours: by the type that a loader of ComfyUI was set to. */

/** Loaders with a widget `type`. */
const LOADERS = ["CLIPLoader", "DualCLIPLoader"];
/** Types that hold a CLIP-L, -G or -H, by load_text_encoder_state_dicts in ComfyUI 0.29.0. */
const CLIP_TYPES = new Set([
  ...["stable_diffusion", "sdxl", "stable_cascade", "sd3", "flux", "hidream"],
  ...["hunyuan_dit", "hunyuan_video", "kandinsky5", "kandinsky5_image"],
]);
/** Links that are followed. */
const MAX_HOPS = 30;

/** A sentence on the CLIP that a node is linked to, or "" where there is nothing to say or nothing known. */
export function clipNoteOf(node) {
  let current = node;
  for (let hop = 0; hop < MAX_HOPS; hop++) {
    current = sourceOf(current);
    if (!current) return "";
    if (!LOADERS.includes(current.comfyClass ?? current.type)) continue;
    const type = current.widgets?.find((widget) => widget.name === "type")?.value;
    if (typeof type !== "string" || CLIP_TYPES.has(type)) return "";
    return `This CLIP is of type ${type}: Weighted CLIP works on CLIP-L, CLIP-G and CLIP-H`;
  }
  return "";
}

/** The node that a node has its CLIP from: by the input of that type or, as a reroute has, the only one. */
function sourceOf(node) {
  const { inputs = [], graph } = node;
  const named = inputs.find(({ type }) => String(type).split(",").includes("CLIP"));
  const slot = named ?? (inputs.length === 1 ? inputs[0] : null);
  if (slot?.link == null || !graph) return null;
  const link = graph.getLink?.(slot.link) ?? graph.links?.[slot.link];
  return link ? graph.getNodeById(link.origin_id) : null;
}
