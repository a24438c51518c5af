/** Drives the ruler of a node that only looks like ComfyUI's, with a server that answers when it is told to. */
import { NodePlaces } from "/comfyui/ruler/node_places.js";
import { NodeRuler } from "/comfyui/ruler/node_ruler.js";
import { ruleOf } from "/comfyui/ruler/requests.js";
import { wait } from "./wait.js";

const definitions = JSON.parse(document.getElementById("weights").textContent).definitions;
/** The rule for a class of nodes, as ComfyUI's server describes it. */
const ruleFor = (comfyClass) => ruleOf(definitions[comfyClass]);

/** A node with widgets of these values. */
function makeNode(comfyClass, values, inputs = []) {
  const isPrompt = (name) => name.startsWith("text");
  const widgets = Object.entries(values).map(([name, value]) => ({ name, value, dynamicPrompts: isPrompt(name) }));
  return { comfyClass, widgets, inputs, graph: { links: {}, getNodeById: () => null } };
}

/** A ruler with what it asked, a way to answer, and what it shows. */
function follow(node) {
  const asked = [];
  const state = { isOn: true };
  const ask = (body, signal) =>
    new Promise((answer, fail) => {
      asked.push({ body: JSON.parse(body), answer, fail, signal });
      signal.addEventListener("abort", () => fail(new Error("aborted")));
    });
  const ruler = new NodeRuler(node, ruleFor(node.comfyClass), { isOn: () => state.isOn, ask });
  document.body.append(ruler.drawing.element);
  const type = (text, name = "text") => {
    node.widgets.find((widget) => widget.name === name).value = text;
    ruler.check();
  };
  const shown = () => ({
    chips: [...ruler.drawing.element.querySelectorAll(".wcr-text")].map((element) => element.textContent).join(" "),
    labels: [...ruler.drawing.element.querySelectorAll(".wcr-label")].map((element) => element.textContent),
    bar: ruler.drawing.element.querySelector(".wcr-bar")?.textContent ?? "",
    isStale: ruler.drawing.box.classList.contains("wcr-stale"),
  });
  return { ruler, asked, state, type, shown };
}

/** A view of one-token words. */
function viewOf(text) {
  const plain = { note: "", weight: 1, ids: [1], joins: false, hidden: false, problems: [] };
  const words = [...text.matchAll(/\S+/g)];
  const chips = words.map(({ 0: word, index }) => ({ ...plain, text: word, start: index, end: index + word.length }));
  const chunks = [{ num_tokens: chips.length, capacity: 75, has_break: false, chips }];
  const options = { syntax: "comfy", scheme: "comfy", normalization: "none" };
  return { version: 2, text, ...options, num_tokens: chips.length, chunks, issues: [] };
}

const TEXT_ENCODE = { syntax: "comfy", scheme: "comfy", normalization: "none", chunking: "as syntax" };

/** What is told to the test. */
export async function nodeResults() {
  const results = {};
  const one = follow(makeNode("WeightedCLIPTextEncode", { text: "", ...TEXT_ENCODE }));
  for (const text of ["a", "a c", "a ca", "a cat"]) one.type(text);
  await wait(150);
  results.typed = one.asked.map(({ body }) => body);
  one.type("a cat sat");
  await wait(150);
  // the older answer comes last and does not count
  one.asked[1].answer([viewOf("a cat sat")]);
  await wait(1);
  one.asked[0].answer([viewOf("a cat")]);
  await wait(1);
  results.lastWins = one.shown();
  one.ruler.check();
  await wait(150);
  results.numAskedUnchanged = one.asked.length;
  one.type("broken");
  await wait(150);
  one.asked.at(-1).fail(new Error("The server does not answer"));
  await wait(1);
  results.failed = one.shown();
  one.type("x".repeat(70000));
  await wait(150);
  results.tooLong = { ...one.shown(), numAsked: one.asked.length };
  one.type("a dog");
  one.ruler.executed([viewOf("a dog")]);
  await wait(150);
  results.executed = { ...one.shown(), numAsked: one.asked.length };
  one.type("a dog!");
  one.ruler.executed([viewOf("a dog")]);
  await wait(150);
  results.executedLate = { ...one.shown(), asked: one.asked.at(-1).body.text };
  one.state.isOn = false;
  one.ruler.switched();
  results.off = one.shown();
  one.type("while off");
  await wait(150);
  results.numAskedOff = one.asked.length;
  one.state.isOn = true;
  one.ruler.switched();
  await wait(150);
  results.askedOn = one.asked.at(-1).body.text;
  one.type("gone");
  one.ruler.remove();
  await wait(150);
  results.askedGone = one.asked.at(-1).body.text;

  const slot = { name: "text", widget: { name: "text" }, link: 7 };
  const other = makeNode("WeightedCLIPInspect", { text: "old", syntax: "comfy", chunking: "as syntax" }, [slot]);
  const waiting = follow(other);
  waiting.ruler.check();
  await wait(150);
  results.waiting = { ...waiting.shown(), numAsked: waiting.asked.length };
  waiting.ruler.executed([viewOf("from elsewhere")]);
  results.arrived = waiting.shown();

  const sdxl = follow(makeNode("WeightedCLIPSDXLEncode", { text_g: "a", text_l: "a", ...TEXT_ENCODE }));
  sdxl.ruler.check();
  await wait(150);
  sdxl.asked[0].answer([viewOf("a")]);
  await wait(1);
  results.sdxlSame = { ...sdxl.shown(), numAsked: sdxl.asked.length };
  sdxl.type("b", "text_l");
  await wait(150);
  sdxl.asked[2].answer([viewOf("b")]);
  sdxl.asked[1].answer([viewOf("a")]);
  await wait(1);
  results.sdxl = sdxl.shown();
  // a run reads CLIP-L's text first
  sdxl.ruler.executed([viewOf("b"), viewOf("a")]);
  results.sdxlExecuted = sdxl.shown();

  const values = { text: "a // b", emphasis: "No norm", comma_backtrack: 20, padding: "attend" };
  const times = { steps: 30, counter: "as written" };
  const a1111 = follow(makeNode("WeightedCLIPA1111Encode", { ...values, ...times }, [{ name: "sigmas", link: 3 }]));
  a1111.ruler.check();
  await wait(150);
  a1111.asked[0].answer([viewOf("a")]);
  await wait(1);
  results.a1111 = { ...a1111.shown(), body: a1111.asked[0].body };
  const phrases = { hide: "cat", hidden_from: "everything", from_phrases: "" };
  const masks = follow(makeNode("WeightedCLIPMaskControl", { text: "a cat", ...phrases, causal: true }));
  masks.ruler.check();
  await wait(150);
  results.masks = masks.asked[0].body;
  const choices = { text: "a (red:1.4) cat", keep: 3, crop: "center", syntax: "a1111" };
  const rerank = follow(makeNode("WeightedCLIPRerank", choices));
  rerank.ruler.check();
  await wait(150);
  results.rerank = rerank.asked[0].body;
  results.withRuler = Object.keys(definitions).filter(ruleFor);
  const stock = { name: "CLIPTextEncode", input: { required: { text: ["STRING", { multiline: true }] } } };
  results.foreign = [ruleOf(stock), ruleOf({ name: "Reroute" })];
  results.clip = await clipNotes();
  results.encoders = await encodersAsked();
  results.files = await filesAsked();
  results.linked = await linkedTexts();
  results.places = placesShown();
  results.regions = regionsShown();
  return results;
}

/** What Regional Prompt shows: as run, as sampled, and after a change. */
function regionsShown() {
  const { views } = JSON.parse(document.getElementById("cases").textContent).regions;
  for (const place of views[0].places) delete place.acted;
  const own = views[0].places.find((place) => place.is_own);
  const { found, note, node, ruler } = placing("WeightedCLIPRegion", own, ["strength", "area", "start", "end", "unit"]);
  ruler.restored(views);
  note("executed");
  const place = { name: "region 1", steps: [0, 1], num_steps: 4, picture: [[1, 0]] };
  ruler.acted({ node: "4", text: "region 1 acted", place }, false);
  note("acted");
  const strength = node.widgets.find(({ name }) => name === "strength");
  strength.value = 0.75;
  ruler.check();
  note("changed");
  strength.value = own.strength;
  ruler.check();
  note("back");
  return found;
}

/** A node with the values of a place, its ruler, and what notes under a name what that shows. */
function placing(comfyClass, own, names) {
  const node = makeNode(comfyClass, Object.fromEntries(names.map((name) => [name, own[name]])));
  const state = { isOn: true };
  const ruler = new NodePlaces(node, ruleFor(node.comfyClass), { isOn: () => state.isOn });
  document.body.append(ruler.drawing.element);
  const { element, box } = ruler.drawing;
  const texts = (selector) => [...element.querySelectorAll(selector)].map((one) => one.textContent);
  const found = {};
  const note = (name) => {
    const rows = texts(".wcr-place").map((text) => /acted in .*$/.exec(text)?.[0] ?? "");
    const pictures = [...element.querySelectorAll(".wcr-place")].map((row) => row.querySelector("canvas")?.width ?? 0);
    const isStale = box.classList.contains("wcr-stale");
    found[name] = { chips: texts(".wcr-text").join(" "), rows, pictures, isStale, message: texts(".wcr-message").join() };
  };
  return { found, note, node, ruler, state };
}

/** What Place Phrase shows: as run, as sampled, after a change, run again, and of other values. */
function placesShown() {
  const { views } = JSON.parse(document.getElementById("cases").textContent).placed;
  for (const place of views[0].places) delete place.acted;
  const own = views[0].places.find((place) => place.is_own);
  const names = ["phrase", "inside", "outside", "area", "start", "end", "unit"];
  const { found, note, node, ruler, state } = placing("WeightedCLIPPlace", own, names);
  const areaWidget = node.widgets.find(({ name }) => name === "area");
  ruler.restored(views.map((view) => ({ ...view, places: view.places.map((place) => ({ ...place, phrase: "dog" })) })));
  note("otherRestored");
  const acted = (id, name, steps, picture, isOwn) =>
    ruler.acted({ node: id, text: `${name} acted`, place: { name, steps, num_steps: 4, picture } }, isOwn);
  acted("4", "“red cat”", [], null, false);
  note("foreign");
  acted("5", own.name, [], null, true);
  note("lone");
  ruler.begun();
  ruler.executed(views);
  note("executed");
  acted("4", "“red cat”", [0, 1], [[1, 0]], false);
  acted("5", own.name, [], null, true);
  acted("9", own.name, [3], null, false);
  note("acted");
  ruler.executed(views);
  note("again");
  areaWidget.value = "right";
  ruler.check();
  note("changed");
  areaWidget.value = ` ${own.area} `;
  ruler.check();
  note("back");
  state.isOn = false;
  ruler.switched();
  note("off");
  state.isOn = true;
  ruler.executed(views.map((view) => ({ ...view, num_tokens: 0 })));
  note("anew");
  ruler.remove();
  const late = placing("WeightedCLIPPlace", own, names);
  const place = { name: "“red cat”", steps: [0, 1], num_steps: 4, picture: [[1, 0]] };
  late.ruler.acted({ node: "4", text: "“red cat” acted", place }, false);
  late.ruler.executed(views);
  late.note("late");
  return { ...found, ...late.found };
}

/** The text encoders that are asked for: by a loader's type, as a run has told, and when another file is loaded. */
async function encodersAsked() {
  const file = { name: "clip_name", value: "one" };
  const loader = { id: 1, comfyClass: "CLIPLoader", widgets: [file, { name: "type", value: "lumina2" }] };
  const inputs = [{ name: "clip", type: "CLIP,WEIGHTED_CLIP", link: 4 }];
  const node = makeNode("WeightedCLIPWeighAttention", { text: "a", syntax: "comfy" }, inputs);
  Object.assign(node.graph, { links: { 4: { origin_id: 1, origin_slot: 0 } }, getNodeById: () => loader });
  const { ruler, asked, type, shown } = follow(node);
  const answered = async (view) => {
    await wait(150);
    asked.at(-1).answer([view]);
    await wait(1);
    return { encoder: asked.at(-1).body.encoder ?? null, bar: shown().bar };
  };
  ruler.check();
  const before = await answered(viewOf("a"));
  const own = { encoder: "a.Tokenizer", notes: ["weighs rows"] };
  const open = (text) => ({ ...viewOf(text), ...own, chunks: [{ ...viewOf(text).chunks[0], capacity: null }] });
  ruler.executed([open("a")]);
  await wait(150);
  const numAsked = asked.length;
  type("a b");
  const after = await answered(open("a b"));
  file.value = "another";
  ruler.check();
  const other = await answered(viewOf("a b"));
  ruler.executed([viewOf("a b")]);
  ruler.weighed("1 row in 2 attention layers");
  const weighed = shown().bar;
  type("a");
  const told = await answered(viewOf("a"));
  return { before, numAsked, after, other, weighed, told };
}

/** The files of text encoders that are asked for, by loader; in which `one.pt` is set by a link. */
async function filesAsked() {
  const files = { clip_name: "one.pt", clip_name1: "a/one.pt", clip_name2: "two.pt", file: "checkpoints/one.pt" };
  const widgets = Object.entries(files).map(([name, value]) => ({ name, value }));
  const found = {};
  const ask = async (loader, nodeClass, values, slots = []) => {
    const inputs = [{ name: "clip", type: "CLIP,WEIGHTED_CLIP", link: 4 }];
    const node = makeNode(nodeClass, values, inputs);
    const source = { id: 1, comfyClass: loader, widgets, inputs: slots };
    Object.assign(node.graph, { links: { 4: { origin_id: 1, origin_slot: 0 } }, getNodeById: () => source });
    const { ruler, asked } = follow(node);
    ruler.check();
    await wait(150);
    return asked[0].body.files ?? null;
  };
  const one = ["WeightedCLIPTextEncode", { text: "a", ...TEXT_ENCODE }];
  for (const loader of ["CLIPLoader", "DualCLIPLoader", "WeightedCLIPLoad", "CheckpointLoaderSimple"]) {
    found[loader] = await ask(loader, ...one);
  }
  found.linked = await ask("DualCLIPLoader", ...one, [{ widget: { name: "clip_name1" }, link: 7 }]);
  found.twoBoxes = await ask("CLIPLoader", "WeightedCLIPSDXLEncode", { text_g: "a", text_l: "b" });
  return found;
}

/** What is said of CLIPs of several kinds, through a reroute and a LoRA, and around a circle. */
async function clipNotes() {
  const bars = {};
  const loaders = { wan: "CLIPLoader", stable_diffusion: "CLIPLoader", flux: "DualCLIPLoader" };
  const others = { ltxv: "CheckpointLoaderSimple", circle: "Reroute" };
  for (const [type, loader] of Object.entries({ ...loaders, ...others })) {
    const nodes = {};
    const links = {};
    const graph = { links, getNodeById: (id) => nodes[id] };
    const add = (id, comfyClass, inputType, from) => {
      links[id] = { origin_id: from, origin_slot: 0 };
      const widgets = [{ name: "type", value: type }];
      const inputs = inputType ? [{ name: "in", type: inputType, link: id }] : [];
      nodes[id] = { comfyClass, inputs, outputs: [{ type: "CLIP" }], widgets, graph };
    };
    add(1, loader, type === "circle" ? "*" : "", 3);
    add(2, "Reroute", "*", 1);
    add(3, "LoraLoader", "CLIP", 2);
    links[4] = { origin_id: 3, origin_slot: 0 };
    const inputs = [{ name: "clip", type: "CLIP,WEIGHTED_CLIP", link: 4 }];
    const node = makeNode("WeightedCLIPTextEncode", { text: "", ...TEXT_ENCODE }, inputs);
    const followed = follow(Object.assign(node, { graph }));
    followed.ruler.check();
    await wait(150);
    followed.asked[0].answer([viewOf("a")]);
    await wait(1);
    bars[type] = followed.shown().bar;
  }
  return bars;
}

/** Texts by way of other nodes: what is shown, where it is changed, and what the page need not say. */
async function linkedTexts() {
  const nodes = {};
  const links = {};
  const graph = { links, getNodeById: (id) => nodes[id], getLink: (id) => links[id] };
  const add = (id, type, values, from = {}) => {
    const inputs = Object.entries(from).map(([name, origin]) => {
      links[`${origin}-${id}`] = { origin_id: origin, origin_slot: 0 };
      return { name, widget: { name }, link: `${origin}-${id}` };
    });
    const widgets = Object.entries(values).map(([name, value]) => ({ name, value }));
    const getInputLink = () => links[inputs[0]?.link];
    return (nodes[id] = { id, type, title: type, widgets, inputs, graph, getInputLink, isVirtualNode: type === "Reroute" });
  };
  const text = add(1, "PrimitiveString", { value: "a cat" });
  add(2, "Reroute", {}, { "": 1 });
  add(3, "Reroute", {}, { "": 4 });
  add(4, "Reroute", {}, { "": 3 });
  add(5, "StringConcatenate", { string_a: "a" });
  add(6, "PrimitiveNode", { value: "a // b" });
  const replaced = add(7, "PrimitiveNode", { value: "%date%" });
  replaced.properties = { "Run widget replace on values": true };
  const steps = add(8, "PrimitiveInt", { value: 30 });

  const found = {};
  for (const [name, id] of Object.entries({ text: 1, reroute: 2, circle: 3, computed: 5, primitive: 6, replaced: 7 })) {
    const slot = { name: "text", widget: { name: "text" }, link: `${id}-ours` };
    links[slot.link] = { origin_id: id, origin_slot: 0 };
    const node = makeNode("WeightedCLIPInspect", { text: "", syntax: "comfy", chunking: "as syntax" }, [slot]);
    const { ruler, asked, shown } = follow(Object.assign(node, { graph }));
    ruler.check();
    await wait(150);
    asked[0]?.answer([viewOf(asked[0].body.text)]);
    await wait(1);
    const boxes = ruler.placeOf(0)?.boxes.map((box) => box.node.type) ?? [];
    found[name] = { asked: asked.map(({ body }) => body.text), bar: shown().bar, boxes, isLinked: ruler.isLinked };
  }

  const slots = ["text_g", "text_l"].map((name) => ({ name, widget: { name }, link: "1-ours" }));
  const both = follow(Object.assign(makeNode("WeightedCLIPSDXLEncode", { text_g: "", text_l: "" }, slots), { graph }));
  both.ruler.check();
  await wait(150);
  both.asked[0].answer([viewOf("a cat")]);
  await wait(1);
  found.twoBoxes = { ...both.shown(), boxes: both.ruler.placeOf(0).boxes.map(({ widget }) => widget === text.widgets[0]) };

  links["8-ours"] = { origin_id: 8, origin_slot: 0 };
  const counts = [{ name: "steps", widget: { name: "steps" }, link: "8-ours" }];
  const timed = follow(Object.assign(makeNode("WeightedCLIPA1111Encode", { text: "a", steps: 20 }, counts), { graph }));
  timed.ruler.check();
  await wait(150);
  timed.asked[0].answer([viewOf("a")]);
  await wait(1);
  found.steps = { asked: timed.asked[0].body.values.steps, is: steps.widgets[0].value, bar: timed.shown().bar };
  return found;
}
