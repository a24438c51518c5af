/**
 * Pictures of A1111 or Forge drawn again: our template, opened with their data. It is offered once a picture's file was
 * dropped on the page, of which ComfyUI makes a graph of its own that stays as it is, and where data was pasted into a
 * prompt box. Without a click nothing is sent, and no workflow is opened.
 */
import { make } from "./elements.js";
import { say } from "./language.js";
import { MAX_BYTES } from "./requests.js";
import { SAME_PICTURE } from "./words.js";
import { after } from "./wrap.js";

const TEMPLATE = "13 From an A1111 picture";
const READER = "WeightedCLIPReadParameters";
const LOADER = "CheckpointLoaderSimple";
/** Folder of our pack, by which the server names its templates: /extensions/FOLDER/ruler/picture_offer.js. */
const FOLDER = new URL(import.meta.url).pathname.split("/").at(-3);
/** A line of settings, as ComfyUI looks for one too. */
const SETTINGS = /(^|\n)[ \t]*Steps: \d/;
/** Maximum number of files that are not there of which each has a line. */
const MAX_LINES = 5;
/** Milliseconds for which an offer stands. */
const LIFE = 30_000;

/** The bar that stands. */
let open = null;
/** Whether a template is being opened. */
let isOpening = false;

/**
 * @typedef {object} Host
 * @property {object} app ComfyUI's modules.
 * @property {object} api
 * @property {(text: string) => Promise<{checkpoint: string, missing: string[]}>} pictureOf What the server has of the files
 *   that a picture's data names; an error if the data cannot be read.
 */

/**
 * Offer our template for pictures that the page makes a graph of by their generation data.
 * @param {Host} host The page.
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
  const offer = bar(say("This picture is from A1111 or Forge. Weighted CLIP can draw the same one."));
  const take = make("button", "", say(SAME_PICTURE));
  const timer = setTimeout(() => offer.remove(), LIFE);
  take.onclick = async () => {
    clearTimeout(timer);
    take.disabled = true;
    try {
      await openPicture({ text, file }, host);
    } catch (error) {
      offer.firstChild.textContent = say(error.message);
      take.remove();
    }
  };
  offer.insertBefore(take, offer.lastChild);
}

/** A bar with a text, in the place of the one that stands. */
function bar(text) {
  close();
  open = make("div", "", "", { id: "weighted-clip-offer" });
  const no = make("button", "", "×", { ariaLabel: say("Close") });
  no.onclick = ({ target }) => target.parentNode.remove();
  open.append(make("span", "", text, { role: "status" }), no);
  return document.body.appendChild(open);
}

/**
 * Open the template in a workflow of its own with a picture's data and, if it is there, its checkpoint. A bar names the
 * files that are not there.
 * @param {{text: string, file?: File}} picture Its data, and its file if there is one.
 * @param {Host} host The page.
 */
export async function openPicture({ text, file }, host) {
  if (isOpening) return;
  isOpening = true;
  try {
    if (new Blob([JSON.stringify({ text })]).size > MAX_BYTES) throw new Error("The picture's data is longer than 64 KiB");
    const { checkpoint, missing } = await host.pictureOf(text);
    await openTemplate({ text, file, checkpoint }, host);
    close();
    if (missing.length) showMissing(missing);
  } finally {
    isOpening = false;
  }
}

function showMissing(missing) {
  const list = make("ul");
  list.append(...missing.slice(0, MAX_LINES).map((line) => make("li", "", say(line))));
  const numMore = missing.length - MAX_LINES;
  if (numMore > 0) list.append(make("li", "", say(`and ${numMore} more`)));
  const shown = bar(say("Without these files the picture will differ:"));
  shown.firstChild.append(list);
}

async function openTemplate({ text, file, checkpoint }, { app, api }) {
  const workflow = await fetched(api, `/workflow_templates/${FOLDER}/${encodeURIComponent(TEMPLATE)}.json`);
  const name = file ? await uploaded(api, file) : "";
  const nodeOf = (kind) => workflow.nodes.find(({ type }) => type === kind);
  const [, source] = nodeOf(READER).widgets_values;
  nodeOf(READER).widgets_values = [file ? "" : text, source, name];
  if (checkpoint) Object.assign(nodeOf(LOADER), { widgets_values: [checkpoint], properties: {} });
  // the host's own graph has the picture's name, and 1.58 would replace it
  await app.loadGraphData(workflow, true, true, `${file ? stem(file.name) : say(SAME_PICTURE)} A1111`);
  const image = app.graph.nodes.find(({ type }) => type === READER).widgets.find((widget) => widget.name === "image");
  const names = image.options.values;
  if (name && Array.isArray(names) && !names.includes(name)) names.push(name);
}

async function uploaded(api, file) {
  const body = new FormData();
  body.append("image", file);
  const { name } = await fetched(api, "/upload/image", { method: "POST", body });
  return name;
}

const stem = (path) => path.split(/[\\/]/).at(-1).replace(/\.\w+$/, "");

async function fetched(api, route, options) {
  const answer = await api.fetchApi(route, options);
  if (!answer.ok) throw new Error(`The server answers ${answer.status}: restart ComfyUI`);
  return answer.json();
}
