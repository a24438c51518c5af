/** The ruler's texts about a view (weighting/reading/view.py, weighting/reading/timed_view.py). */

import { say } from "./language.js";

/** Maximum number of periods listed for a text that comes and goes. */
const MAX_RUNS = 4;

/** What a button opens from generation data. */
export const SAME_PICTURE = "The same picture";

/** A number with its noun: "1 token", "2 tokens", "4,400 tokens". */
export const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** Fill level of the last chunk of a view: "17 / 75", "11 / 75 in chunk 2 of 2"; "17 tokens" without chunks. */
export function countText(view) {
  const { num_tokens: count, capacity } = view.chunks.at(-1);
  const number = view.chunks.length;
  if (capacity === null) return counted(count, "token");
  return `${count} / ${capacity}${number > 1 ? ` in chunk ${number} of ${number}` : ""}`;
}

/**
 * Steps of a text of a timed prompt, and its weight.
 * @param {object} view A view with `branch`, `weight` and `steps`, perhaps `is_coupled`.
 * @param {object[]} views All views of that prompt.
 * @returns {string} "steps 1–10", "AND ×0.5, all steps", "COUPLE, all steps", or "" if there is nothing to say.
 */
export function whenText(view, views) {
  if (!view.steps) return "";
  const joint = view.is_coupled ? "COUPLE" : (view.joint ?? (view.branch > 0 ? "AND" : ""));
  const branch = [joint, view.weight === 1 ? "" : `×${Number(view.weight.toPrecision(6))}`].filter(Boolean).join(" ");
  const others = views.filter((other) => other !== view && other.encoder === view.encoder);
  const isAlone = others.every((other) => other.branch !== view.branch);
  const steps = isAlone ? (others.length ? "all steps" : "") : stepsText(view.steps);
  return [branch, steps].filter(Boolean).join(", ");
}

/** First and last step of each run, counted from 1: "step 3", "steps 1–10", "steps 1, 3, 5, … 19". */
function stepsText(runs) {
  const texts = runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  const isOne = runs.length === 1 && runs[0][0] === runs[0][1];
  const listed = texts.length > MAX_RUNS ? [...texts.slice(0, MAX_RUNS - 1), `… ${texts.at(-1)}`] : texts;
  return `${isOne ? "step" : "steps"} ${listed.join(", ")}`;
}

/** Views of each text by one encoder: those after the first read the same. */
export const texts = (views) => views.filter((view) => !view.is_beside);

/**
 * Syntax, scheme and normalisation in the order in which they act.
 * @param {object} view The view.
 * @param {boolean} hasScheme Whether the node encodes.
 * @param {string} [how] How weights act where they are left out of the text's rows, instead of the scheme.
 * @returns {{text: string, title: string}} For the count line, and what it means.
 */
export function optionTexts(view, hasScheme, how) {
  const { syntax, normalization } = view;
  const scheme = how ?? view.scheme;
  const all = [syntax, ...(hasScheme ? [...(normalization === "none" ? [] : [normalization]), scheme] : [])];
  const title = `syntax ${syntax}${hasScheme ? `, normalization ${normalization}, ${how ? "how" : "scheme"} ${scheme}` : ""}`;
  return { text: [...new Set(all)].join(" · "), title };
}

/** Announcement for a screen reader, in one line, when these views are shown, and an error or "". */
export function spoken(views, message) {
  const issues = views.flatMap((view) => view.issues.map((issue) => say(issue.message)));
  const { length } = texts(views);
  const count = length === 1 ? countText(views[0]) : counted(length, "text");
  const tokens = length ? say(/^\d+ \/ /.test(count) ? `${count} tokens` : count) : "";
  const problems = issues.length ? `${say(counted(issues.length, "problem"))}: ${issues.join(" ")}` : "";
  return [say(message), tokens, problems].filter(Boolean).map((part) => part.replace(/[.:。：]?$/u, ".")).join(" ");
}
