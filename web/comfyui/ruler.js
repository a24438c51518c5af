/**
 * The token ruler: shows below the prompt boxes of our nodes what a prompt becomes while it is typed, and after a run what
 * came with the node's output. The nodes work the same without it.
 *
 * ComfyUI loads every script below this folder by itself; this one alone does anything when it is loaded.
 */
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { hideAdvanced } from "./ruler/advanced.js";
import { areaOf } from "./ruler/boxes.js";
import { SERVER } from "./ruler/clips.js";
import { addCompletion } from "./ruler/completion.js";
import { ForeignRulers } from "./ruler/foreign.js";
import { inserter } from "./ruler/inserting.js";
import { say, setLanguage } from "./ruler/language.js";
import { sourceOf } from "./ruler/links.js";
import { namesOf } from "./ruler/names.js";
import { NodePlaces } from "./ruler/node_places.js";
import { NodeRuler } from "./ruler/node_ruler.js";
import { NodeServer } from "./ruler/node_server.js";
import { offerPictures, openPicture } from "./ruler/picture_offer.js";
import { replaceNodes } from "./ruler/replacing.js";
import { ruleOf } from "./ruler/requests.js";
import { requestsTo } from "./ruler/routes.js";
import { noteTexts } from "./ruler/served.js";
import { addStyle, onTheme } from "./ruler/style.js";
import { addChipWeights, addWeightKeys } from "./ruler/weight_input.js";
import { addRulerWidget } from "./ruler/widget.js";
import { NodeMaps } from "./ruler/word_maps.js";
import { after } from "./ruler/wrap.js";
import { followTyping } from "./ruler/writing.js";

/** The server's message after a sampling about where weights, a placed phrase or a region of a node acted (EVENT of
 * hosts/comfy/attention/attention.py). */
const WEIGHED = "weighted_clip.weighed";
/** The server's message about a prompt box that a Weighted CLIP has served. */
const SERVED = "weighted_clip.served";
/** Milliseconds between two checks of linked texts and of the rulers' positions: the page announces neither. */
const CHECK_TIME = 200;
/** ComfyUI's setting of the language. */
const LOCALE = "Comfy.Locale";
/** Off: no requests and no chips; problems are still shown after a run. */
const SETTING = "WeightedCLIP.TokenRuler";
/** Off: no names of embeddings and LoRAs are offered. */
const NAMES_SETTING = "WeightedCLIP.Names";
/** On: the ruler on all of ComfyUI's own prompt boxes. */
const STOCK_SETTING = "WeightedCLIP.StockRuler";
/** Property of a stock node whose user has asked for the ruler. */
const SHOWN = "weighted_clip_tokens";
/** Our node that takes the place of CLIP Text Encode, and reads as it by default. */
const MAIN = "WeightedCLIPTextEncode";
/** The syntax of nodes that have no menu for it; of others ComfyUI's. */
const SYNTAXES = { WeightedCLIPA1111Encode: "a1111", WeightedCLIPLoadPromptLoras: "a1111" };

/** ComfyUI's own nodes with prompt boxes, and their names. */
const STOCK = {
  CLIPTextEncode: ["text"],
  CLIPTextEncodeSDXL: ["text_g", "text_l"],
  CLIPTextEncodeSDXLRefiner: ["text"],
};

/** The rules for our classes of nodes, by name. */
const rules = new Map();

/** The rulers of all nodes, by node. */
const rulers = new Map();

/** The widgets that hold them. */
const widgets = new Set();

/** The settings, which announce a change before they have the new value. */
let isOn = true;
let hasNames = true;
let isOnStock = false;

/** Whether there may be a node that serves others. */
let hasServer = false;

/** Names known to the server, once requested. */
let names = null;

const routes = requestsTo(api);
const host = { ...routes, isOn: () => isOn, drawAgain, boxesOf, changed };

/** The graph of the workflow itself. */
const root = () => app.graph?.rootGraph ?? app.graph;

const foreign = new ForeignRulers({ root, serverRule: () => rules.get(SERVER), stockRuleOf, addRuler });

/** Open our template with generation data that was pasted. */
function drawAgain(text) {
  return openPicture({ text }, { app, api, pictureOf: routes.pictureOf });
}

/** The boxes with the prompt that a node encodes, the stock ones too; null for another node. */
function boxesOf(node) {
  const rule = rules.get(node.comfyClass);
  const names = rule?.hasScheme ? rule.texts : STOCK[node.comfyClass];
  const sources = names?.map((name) => sourceOf(node, name));
  return sources?.every((source) => source?.places.length === 1) ? sources.map(({ places }) => places[0]) : null;
}

/** A node by its id, preceded by those of its subgraphs: "7", "3:12". */
function nodeOf(id) {
  const ids = String(id).split(":");
  const last = ids.pop();
  let graph = root();
  for (const one of ids) graph = graph?.getNodeById(one)?.subgraph;
  return graph?.getNodeById(last);
}

/** Readers of a prompt box, if an element is one: the box, its name, and each node with its ruler. */
function readersOf(area) {
  const found = [];
  for (const [node, ruler] of rulers) {
    for (const name of ruler.texts ?? []) {
      const box = sourceOf(node, name)?.places.find((one) => areaOf(one) === area);
      if (box) found.push({ box, node, reading: ruler.readingOf(name) });
    }
  }
  return found;
}

/** The box of an element, if rulers read it, all of them in one syntax. */
function boxOf(area) {
  const found = readersOf(area).map(({ box, reading }) => ({ box, syntax: reading.syntax }));
  const [first] = found;
  return first?.syntax && found.every(({ syntax }) => syntax === first.syntax) ? first : null;
}

/** The same by what a node itself says of how it reads names: rulers do not know it while they are off. */
function nameBoxOf(area) {
  const found = readersOf(area).map(({ box, node, reading: { syntax, chunking } }) => {
    return { box, syntax: syntax ?? SYNTAXES[node.comfyClass] ?? "comfy", chunking };
  });
  const [first] = found;
  const isSame = ({ syntax, chunking }) => syntax === first.syntax && chunking === first.chunking;
  return first && found.every(isSame) ? first : null;
}

/** The names of the server's embeddings and LoRAs; none while it does not answer. */
async function readNames() {
  const read = (route, hasSuffix) =>
    api
      .fetchApi(route)
      .then((answer) => answer.json())
      .then((files) => namesOf(files, hasSuffix));
  names ??= Promise.all([read("/embeddings", false), read("/models/loras", true)]);
  try {
    const [embeddings, loras] = await names;
    return { embeddings, loras };
  } catch {
    names = null;
    return { embeddings: [], loras: [] };
  }
}

/** Step of Ctrl and an arrow key, by ComfyUI's setting. */
const weightStep = () => app.extensionManager?.setting?.get("Comfy.EditAttention.Delta") ?? undefined;

/** Let ComfyUI see that the workflow has changed, so that its Undo knows. */
function changed() {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
}

/** Give a node a ruler that follows it for as long as it is in a graph. */
function addRuler(node, rule, page = host) {
  const ruler = new (kindOf(rule))(node, rule, page);
  const check = () => ruler.check();
  for (const widget of node.widgets ?? []) after(widget, "callback", check);
  for (const event of ["onConfigure", "onConnectionsChange"]) after(node, event, check);
  const shown = rule.serves && !rule.readers ? "text" : "weighted_clip";
  after(node, "onExecuted", (output) => output?.[shown] && ruler.executed(output[shown]));

  if (!rule.hasMaps) addChipWeights(ruler.drawing, (section) => ruler.placeOf(section), { step: weightStep, changed });

  const boxOfRule = ({ isStock, texts }) => (isStock ? undefined : texts.at(-1));
  const about = { box: boxOfRule(rule), isOurs: rules.has(node.comfyClass) };
  const widget = addRulerWidget(node, ruler.drawing, () => app.canvas.canvas, about);
  const added = () => {
    if (widget.isOff()) return;
    rulers.set(node, ruler);
    widgets.add(widget);
    widget.start();
    check();
  };
  const removed = () => {
    rulers.delete(node);
    widgets.delete(widget);
    widget.stop();
    ruler.remove();
  };
  if (node.graph) added();
  after(node, "onAdded", added);
  after(node, "onRemoved", removed);
  const attach = (other) => {
    widget.attach(boxOfRule(other));
    ruler.follow(other);
    added();
  };
  const detach = () => {
    removed();
    widget.detach();
  };
  return { ruler, attach, detach };
}

function kindOf(rule) {
  if (rule.hasMaps) return NodeMaps;
  if (rule.texts.length) return NodeRuler;
  return rule.serves ? NodeServer : NodePlaces;
}

/** All nodes of a workflow with a class, those in subgraphs too. */
function nodesOf(classes) {
  const graphs = [root(), ...(root()?.subgraphs?.values() ?? [])];
  return graphs.flatMap((graph) => graph?.nodes ?? []).filter(({ comfyClass }) => classes.includes(comfyClass));
}

/** The rule for a stock node whose user has asked for a ruler. */
function stockRuleOf(node) {
  const texts = STOCK[node.comfyClass];
  if (!texts || !(isOnStock || node.properties?.[SHOWN])) return null;
  return { id: MAIN, texts, counts: [], checked: [], hasScheme: false, isStock: true };
}

/** Items of the menu of a node whose prompts, or those behind it, could weigh. */
function serverItems(node) {
  const insert = rules.has(SERVER) ? inserter(node) : null;
  const callback = () => {
    insert();
    changed();
  };
  return insert ? [{ content: say(`Weigh all prompts with ${LiteGraph.registered_node_types[SERVER].title}`), callback }] : [];
}

/** Items of the menu of a stock node. */
function stockItems(node) {
  const isShown = Boolean(node.properties?.[SHOWN]);
  const toggle = () => {
    if (isShown) delete node.properties[SHOWN];
    else node.properties[SHOWN] = true;
    foreign.update(node);
    changed();
  };
  const items = isOnStock || foreign.isServed(node) ? [] : [{ content: say(isShown ? "Hide tokens" : "Show tokens"), callback: toggle }];
  if (node.comfyClass !== "CLIPTextEncode" || !rules.has(MAIN)) return items;
  const name = LiteGraph.registered_node_types[MAIN].title;
  const replace = (nodes) => {
    replaceNodes(nodes, MAIN);
    changed();
  };
  const all = nodesOf(["CLIPTextEncode"]);
  items.push({ content: say(`Replace with ${name}`), callback: () => replace([node]) });
  if (all.length > 1) items.push({ content: say(`Replace all ${all.length} with ${name}`), callback: () => replace(all) });
  return items;
}

/** Speak the page's language from now on. */
async function readLanguage() {
  await setLanguage(app.extensionManager?.setting?.get(LOCALE) ?? "en");
  rulers.forEach((ruler) => ruler.switched());
}

app.registerExtension({
  name: "WeightedCLIP.Ruler",

  settings: [
    {
      id: SETTING,
      category: ["Weighted CLIP", "Token ruler"],
      name: "Weighted CLIP: token ruler",
      tooltip: "Shows the tokens of a prompt below its box while it is typed. Off: only its problems, after a run.",
      type: "boolean",
      defaultValue: true,
      onChange(value) {
        isOn = value !== false;
        rulers.forEach((ruler) => ruler.switched());
      },
    },
    {
      id: NAMES_SETTING,
      category: ["Weighted CLIP", "Names while typing"],
      name: "Weighted CLIP: names while typing",
      tooltip: "Offers the names of embeddings and LoRAs in the prompts of our nodes.",
      type: "boolean",
      defaultValue: true,
      onChange(value) {
        hasNames = value !== false;
      },
    },
    {
      id: STOCK_SETTING,
      category: ["Weighted CLIP", "Token ruler of stock nodes"],
      name: "Weighted CLIP: token ruler on stock nodes",
      tooltip: "Shows the tokens below the boxes of ComfyUI's own CLIP Text Encode, too. Off: where its menu has turned it on.",
      type: "boolean",
      defaultValue: false,
      onChange(value) {
        isOnStock = value === true;
        nodesOf(Object.keys(STOCK)).forEach((node) => foreign.update(node));
      },
    },
  ],

  getNodeMenuItems: (node) => [...serverItems(node), ...(STOCK[node.comfyClass] ? stockItems(node) : [])],

  setup() {
    addStyle();
    readLanguage();
    app.ui?.settings?.addEventListener?.(`${LOCALE}.change`, readLanguage);
    addWeightKeys(boxOf, weightStep);
    addCompletion(nameBoxOf, readNames, { isOn: () => hasNames, changed });
    offerPictures({ app, api, pictureOf: routes.pictureOf });
    followTyping(() => rulers.forEach((ruler) => ruler.caretMoved?.()));
    api.addEventListener("reconnected", () => rulers.forEach((ruler) => ruler.reconnected?.()));
    // changes without a widget event: undo, a loader's menu, a theme
    api.addEventListener("graphChanged", () => rulers.forEach((ruler) => ruler.check()));
    // typing in another node, and a ruler that the page has replaced
    setInterval(() => {
      if (hasServer) foreign.look();
      rulers.forEach((ruler) => ruler.isLinked && ruler.check());
      widgets.forEach((widget) => widget.place());
    }, CHECK_TIME);
    api.addEventListener("execution_start", () => rulers.forEach((ruler) => ruler.begun?.()));
    api.addEventListener(WEIGHED, ({ detail }) => {
      const own = nodeOf(detail.node);
      if (detail.place) rulers.forEach((ruler, node) => ruler.acted?.(detail, node === own));
      else rulers.get(own)?.weighed?.(detail.text);
    });
    api.addEventListener(SERVED, ({ detail: { node: id, by, views, problems } }) => {
      foreign.look();
      for (const { ruler, reader } of foreign.readersOf(id)) ruler.executed(views, reader);
      rulers.get(nodeOf(by))?.served?.(id, nodeOf(id)?.title ?? id, problems);
    });
    onTheme(() => rulers.forEach((ruler) => ruler.drawing.refresh()));
  },

  /** ComfyUI was told to reread its lists of files. */
  refreshComboInNodes() {
    names = null;
  },

  beforeRegisterNodeDef(nodeType, definition) {
    const rule = ruleOf(definition);
    if (rule) rules.set(rule.id, rule);
    else noteTexts(definition);
  },

  nodeCreated(node) {
    if (STOCK[node.comfyClass]) {
      after(node, "onConfigure", () => foreign.update(node));
      foreign.update(node);
    }
    hasServer ||= node.comfyClass === SERVER;
    const rule = rules.get(node.comfyClass);
    if (rule) hideAdvanced(node, (id) => app.extensionManager?.setting?.get(id));
    if (rule?.texts.every((name) => node.widgets?.some((widget) => widget.name === name))) addRuler(node, rule);
  },

  /** Outputs that are back after another workflow was open. Only for the same text, as ids repeat between workflows. */
  onNodeOutputsUpdated(outputs) {
    for (const [id, output] of Object.entries(outputs)) {
      if (output?.weighted_clip) rulers.get(app.graph.getNodeById(id))?.restored(output.weighted_clip);
    }
  },
});
