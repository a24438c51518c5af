/** The bracket that is being written: its problems are not told before it is done. */

/** Prompt box in which text is typed, until it is left or the caret is put elsewhere by the mouse. */
let typed = null;

/**
 * Follow what is typed in prompt boxes.
 * @param {() => void} onCaret Called when the caret has moved in a box that was typed in, or that box was left.
 */
export function followTyping(onCaret) {
  // a button that is pressed must not be drawn anew before its click
  let released = Promise.resolve();
  const leave = () => {
    if (!typed) return;
    typed = null;
    released.then(onCaret);
  };
  const press = () => {
    const end = (done) => window.addEventListener("pointerup", () => setTimeout(done), { capture: true, once: true });
    released = new Promise(end);
    leave();
  };
  window.addEventListener("input", (event) => (typed = event.composedPath()[0]), { capture: true });
  window.addEventListener("focusout", leave, { capture: true });
  window.addEventListener("pointerdown", press, { capture: true });
  document.addEventListener("selectionchange", () => typed && onCaret());
}

/**
 * The bracket around the caret of a box that is typed in.
 * @param {HTMLTextAreaElement | null} area The box.
 * @returns {[number, number] | null} From its first character to its last, without end if it is not closed yet.
 */
export function bracketBeingWritten(area) {
  if (!area || area !== typed || area.selectionStart !== area.selectionEnd) return null;
  const { value: text, selectionStart: caret } = area;
  const open = { "(": [], "[": [] };
  let around = null;
  for (const { index, 0: sign } of text.matchAll(/\\.|[()[\]]/gsu)) {
    if (open[sign]) open[sign].push(index);
    else if (sign.length === 1) {
      const start = open[sign === ")" ? "(" : "["].pop();
      if (start < caret && caret <= index && !(around?.[0] > start)) around = [start, index + 1];
    }
  }
  const first = Math.min(...Object.values(open).flat());
  return first < caret ? [first, Infinity] : around;
}

/** A view without the problems in a stretch of its text. */
export function withoutProblems(view, [start, end]) {
  const kept = view.issues.filter((issue) => issue.start < start || issue.start >= end);
  if (kept.length === view.issues.length) return view;
  const numbers = view.issues.map((issue) => kept.indexOf(issue));
  const rest = (chip) => ({ ...chip, problems: chip.problems.map((at) => numbers[at]).filter((at) => at >= 0) });
  const chunks = view.chunks.map((chunk) => ({ ...chunk, chips: chunk.chips.map(rest) }));
  return { ...view, issues: kept, chunks };
}
