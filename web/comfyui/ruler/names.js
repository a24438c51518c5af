/**
 * Names of embeddings and LoRAs for the place of the caret in a prompt, written as its syntax has them. Pure functions:
 * text in, the stretch to replace and what may be put there out.
 */

/** Reading of embeddings: first word of the chunk rule of each syntax. */
const RULES = { comfy: "comfy", a1111: "a1111", compel: "compel", novelai: "comfy", none: "comfy" };
/** For each reading, how a name is written, and which names can be; compel reads none. */
const EMBEDDINGS = {
  comfy: { write: (name) => `embedding:${name}`, allowed: /^[^\s<[]+$/u },
  a1111: { write: (name) => name, allowed: /^[^<>]+$/u },
};
/** Signs of a name that would be brackets, by syntax. */
const BRACKETS = { comfy: /[()]/g, a1111: /[()[\]]/g, compel: /[()]/g };
/** By syntax, what of a LoRA may stand before the caret and behind it, how one is written, and which names can be. */
const LORAS = {
  a1111: {
    before: /<((?:lora|lyco):)?([^<>:\n]*)$/iu,
    behind: /^[^<>:\n]*(:[^<>\n]*>)/u,
    write: (name, opened = "lora:", rest = ":1>") => `<${opened}${name}${rest}`,
    allowed: /^[^<>:]+$/u,
  },
  compel: {
    before: /((?:with|use)Lora\(\s*)([\w-]*)$/u,
    behind: /^[\w-]*(\s*,[^()\n]*\))/u,
    write: (name, opened, rest = ", 1.0)") => `${opened}${name}${rest}`,
    allowed: /^[\w-]+$/u,
  },
};
/** Beginnings of a tag before a name. */
const KINDS = ["lora", "lyco"];
const MENTION = /embedding:([^\s,:<>()[\]{}|]*)$/iu;
const WORD = /[\p{L}\p{N}_./-]+$/u;
const REST_OF_WORD = /^[\p{L}\p{N}_./-]*/u;
/** Letters of a word that is not yet known to be a name, until names are shown. */
const LEAST = 3;
const MOST_SHOWN = 50;

/**
 * Find names that fit at the caret.
 * @param {string} text The prompt.
 * @param {number} caret Place of the caret.
 * @param {{syntax: string, chunking?: string}} reading How the prompt is read.
 * @param {{embeddings: string[], loras: string[]}} lists The names, without suffixes.
 * @returns {{start: number, end: number, isAsked: boolean, choices: {name: string, kind: string, text: string}[]} | null}
 *   The stretch to replace; whether what stands there can only be a name; and what can be put there. Null for nothing.
 */
export function namesAt(text, caret, { syntax, chunking = "as syntax" }, lists) {
  const rule = chunking === "as syntax" ? RULES[syntax] : chunking.split(" ")[0];
  const before = text.slice(0, caret);
  const behind = text.slice(caret);
  const lora = loraAt(before, behind, LORAS[syntax], lists.loras);
  return lora ?? embeddingAt(before, behind, EMBEDDINGS[rule], BRACKETS[syntax], lists.embeddings);
}

function loraAt(before, behind, form, names) {
  const typed = form?.before.exec(before);
  if (!typed) return null;
  const rest = form.behind.exec(behind);
  const word = REST_OF_WORD.exec(behind)[0];
  const end = before.length + (rest?.[0].length ?? word.length + (behind[word.length] === ">"));
  const allowed = names.filter((name) => form.allowed.test(name));
  const write = (name) => form.write(name, typed[1], rest?.[1]);
  // "<lo" may become "<lora:"
  const isOfAny = !typed[1] && KINDS.some((kind) => kind.startsWith(typed[2].toLowerCase()));
  return choicesOf(before + behind, [typed.index, end], typed[2], isOfAny ? 3 : 2, true, allowed, "LoRA", write);
}

function embeddingAt(before, behind, form, brackets, names) {
  const mention = MENTION.exec(before);
  const typed = mention ?? WORD.exec(before);
  if (!form || !typed || (!mention && typed[0].length < LEAST)) return null;
  const end = before.length + REST_OF_WORD.exec(behind)[0].length;
  const allowed = names.filter((name) => form.allowed.test(name));
  const write = (name) => form.write(brackets ? name.replace(brackets, "\\$&") : name);
  const term = mention ? mention[1] : typed[0];
  return choicesOf(before + behind, [typed.index, end], term, mention ? 2 : 1, Boolean(mention), allowed, "embedding", write);
}

/** The names that fit what was typed of one, up to a rank. */
function choicesOf(text, [start, end], typed, lastRank, isAsked, names, kind, write) {
  const wanted = typed.toLowerCase();
  const ranks = names.map((name) => rankOf(name.toLowerCase(), wanted));
  const order = [...names.keys()].filter((i) => ranks[i] <= lastRank).sort((a, b) => ranks[a] - ranks[b]);
  const choices = order.slice(0, MOST_SHOWN).map((i) => ({ name: names[i], kind, text: write(names[i]) }));
  const others = choices.filter((choice) => choice.text !== text.slice(start, end));
  return others.length ? { start, end, isAsked, choices: others } : null;
}

/** 0: the name begins with it; 1: the file name does; 2: the name contains it; 3: it does not. */
function rankOf(name, wanted) {
  if (name.startsWith(wanted)) return 0;
  if (name.slice(name.lastIndexOf("/") + 1).startsWith(wanted)) return 1;
  return name.includes(wanted) ? 2 : 3;
}

/**
 * Files as a prompt names them: without folders where that is clear.
 * @param {string[]} files Their paths, in a folder of the server's.
 * @param {boolean} hasSuffix Whether they end with one.
 * @returns {string[]} The names, in the same order.
 */
export function namesOf(files, hasSuffix) {
  const paths = files.map((file) => file.replaceAll("\\", "/").replace(hasSuffix ? /\.[^./]+$/u : "", ""));
  const bare = paths.map((path) => path.slice(path.lastIndexOf("/") + 1));
  return paths.map((path, i) => (bare.indexOf(bare[i]) === bare.lastIndexOf(bare[i]) ? bare[i] : path));
}
