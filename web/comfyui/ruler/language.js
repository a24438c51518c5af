/**
 * Texts of the ruler in the language of the page. A language is a file languages/CODE.json: English texts with their
 * translations. `{}` matches anything; in a translation `{0}`, `{1}` name the match, if the order differs.
 * A text that is not in the table stays English.
 */

/** Languages with a table. */
const LANGUAGES = ["zh"];
/** A problem with its place, as the server writes it. */
const AT = "at {}: {}";

/** Texts without `{}`. */
let exact = new Map();
/** The others: pattern and translation. */
let patterns = [];
let at = AT;

/** Switch to another language; English for one without a table. */
export async function setLanguage(code) {
  const file = new URL(`./languages/${code}.json`, import.meta.url);
  const answer = LANGUAGES.includes(code) ? await fetch(file).catch(() => null) : null;
  const table = answer?.ok ? await answer.json().catch(() => ({})) : {};
  const entries = Object.entries(table);
  at = table[AT] ?? AT;
  exact = new Map(entries.filter(([text]) => !text.includes("{}")));
  patterns = entries.filter(([text]) => text.includes("{}")).map(([text, said]) => ({ pattern: patternOf(text), said }));
  // the longest first: what is fixed in it says the most
  patterns.sort((a, b) => b.pattern.source.length - a.pattern.source.length);
}

/** A text of the ruler, or a problem that the server names, in the language of the page. */
export function say(text) {
  const found = exact.get(text);
  if (found !== undefined || !patterns.length) return found ?? text;
  const placed = /^at (\d+): ([^]*)$/.exec(text);
  if (placed) return filled(at, [placed[1], say(placed[2])]);
  for (const { pattern, said } of patterns) {
    const values = pattern.exec(text)?.slice(1);
    if (values) return filled(said, values.map((value) => exact.get(value) ?? value));
  }
  return text;
}

function filled(said, values) {
  let next = 0;
  return said.replace(/\{(\d*)\}/g, (_, number) => values[number === "" ? next++ : Number(number)]);
}

function patternOf(text) {
  const parts = text.split("{}").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("([^]*?)")}$`);
}
