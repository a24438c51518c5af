/**
 * An offer to draw a picture of A1111 or Forge again, once its file was dropped on the page. ComfyUI makes a graph of its
 * own of the picture's data, which stays as it is; without a click nothing is sent, and no workflow is opened.
 */
import { make } from "./elements.js";
import { say } from "./language.js";
import { after } from "./wrap.js";

const TEMPLATE = "13 From an A1111 picture";
const READER = "WeightedCLIPReadParameters";
const LOADER = "CheckpointLoaderSimple";
/** Folder of our pack, by which the server names its templates: /extensions/FOLDER/ruler/picture_offer.js. */
const FOLDER = new URL(import.meta.url).pathname.split("/").at(-3);
/** A line of settings, as ComfyUI looks for one too. */
const SETTINGS = /(^|\n)[ \t]*Steps: \d/;
/** Maximum size of a request, in bytes (MAX_BYTES of web/inspection.py). */
const MAX_BYTES = 64 * 1024;
/** Milliseconds for which an offer stands. */
const LIFE = 30_000;

let open = null;

/**
 * Offer our template for pictures that the page makes a graph of by their generation data.
 * @param {{app: object, api: object, takeApart: (text: string) => Promise<object>}} host ComfyUI's modules, and what reads
 *   generation data.
 */
export function offerPictures(host) {
  after(host.app, "handleFile", async (file) => {
    close();
    const text = await generationData(file).catch(() => null);
    if (text) show(file, text, host);
  });
}

/** Generation data of a PNG without a workflow; null for another file. */
async function generationData(file) {
  const read = window.comfyAPI?.pnginfo?.getPngMetadata;
  if (file?.type !== "image/png" || !read) return null;
  const { parameters, workflow, prompt, templates } = await read(file);
  return !workflow && !prompt && !templates && SETTINGS.test(parameters ?? "") ? parameters : null;
}

function close() {
  open?.remove();
  open = null;
}

function show(file, text, host) {
  close();
  const offer = make("div", "", "", { id: "weighted-clip-offer" });
  const said = make("span", "", say("This picture is from A1111 or Forge. Weighted CLIP can draw the same one."), { role: "status" });
  const take = make("button", "", say("Open as A1111 picture"));
  const no = make("button", "", "×", { ariaLabel: say("Close") });
  no.onclick = () => offer.remove();
  take.onclick = async () => {
    take.disabled = true;
    clearTimeout(timer);
    try {
      if (new Blob([JSON.stringify({ text })]).size > MAX_BYTES) throw new Error("The picture's data is longer than 64 KiB");
      await openTemplate(file, (await host.takeApart(text)).settings ?? {}, host);
      offer.remove();
    } catch (error) {
      said.textContent = say(error.message);
      take.remove();
    }
  };
  offer.append(said, take, no);
  document.body.append(offer);
  const timer = setTimeout(() => offer.remove(), LIFE);
  open = offer;
}

/** Open the template in a workflow of its own, with the file and, if it is there, its checkpoint. */
async function openTemplate(file, settings, { app, api }) {
  if (!settings.Sampler) throw new Error("No settings can be read in the picture's data");
  const workflow = await fetched(api, `/workflow_templates/${FOLDER}/${encodeURIComponent(TEMPLATE)}.json`);
  const checkpoints = await fetched(api, "/models/checkpoints");
  const body = new FormData();
  body.append("image", file);
  const { name } = await fetched(api, "/upload/image", { method: "POST", body });
  const nodeOf = (kind) => workflow.nodes.find(({ type }) => type === kind);
  const [, source] = nodeOf(READER).widgets_values;
  nodeOf(READER).widgets_values = ["", source, name];
  const checkpoint = checkpoints.find((path) => stem(path) === settings.Model);
  if (checkpoint) Object.assign(nodeOf(LOADER), { widgets_values: [checkpoint], properties: {} });
  const title = `${stem(file.name)} A1111`; // the host's own graph has the picture's name, and 1.58 would replace it
  await app.loadGraphData(workflow, true, true, title);
  const image = app.graph.nodes.find(({ type }) => type === READER).widgets.find((widget) => widget.name === "image");
  const names = image.options.values;
  if (Array.isArray(names) && !names.includes(name)) names.push(name);
}

const stem = (path) => path.split(/[\\/]/).at(-1).replace(/\.\w+$/, "");

async function fetched(api, route, options) {
  const answer = await api.fetchApi(route, options);
  if (!answer.ok) throw new Error(`The server answers ${answer.status}: restart ComfyUI`);
  return answer.json();
}
