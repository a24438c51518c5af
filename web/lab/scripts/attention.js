/**
 * The weights of the word that the pointer is on or that has the focus (web/lab/tabs/attention_view.py has drawn those of
 * one word, and says for each what is to be shown).
 */

(() => {
  const VIEW = ".weighted-clip-attention";
  /** The word that is shown, as long as the user has not chosen another: it stays when layer and head change. */
  let chosen = null;

  const wordsOf = (view) => [...view.querySelectorAll("[role=radio]")];

  function show(view, query) {
    const [told, texts, shares] = JSON.parse(view.dataset.rows)[query];
    for (const [index, word] of wordsOf(view).entries()) {
      word.setAttribute("aria-checked", String(index === query));
      word.tabIndex = index === query ? 0 : -1;
    }
    view.querySelector(".weighted-clip-told").textContent = told;
    const lines = [...view.querySelectorAll("line")];
    const height = 2 * Number(lines[0].getAttribute("y2"));
    for (const [index, key] of [...view.querySelectorAll(".weighted-clip-to li")].entries()) {
      key.querySelector("em").textContent = texts[index];
      key.querySelector("u").style.width = `${100 * shares[index]}%`;
      lines[index].setAttribute("y1", String(height * (query + 0.5)));
      lines[index].setAttribute("stroke-opacity", String(Math.sqrt(shares[index])));
    }
    for (const row of view.querySelectorAll(".weighted-clip-matrices rect")) row.setAttribute("y", String(query));
  }

  function choose(event) {
    const word = event.target.closest?.(`${VIEW} [role=radio]`);
    if (!word) return;
    const view = word.closest(VIEW);
    chosen = { query: wordsOf(view).indexOf(word), text: word.title };
    show(view, chosen.query);
  }

  const STEPS = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1, Home: -Infinity, End: Infinity };

  function step(event) {
    const word = event.target.closest?.(`${VIEW} [role=radio]`);
    if (!word || !(event.key in STEPS)) return;
    event.preventDefault();
    const words = wordsOf(word.closest(VIEW));
    const next = words.indexOf(word) + STEPS[event.key];
    words[Math.max(0, Math.min(words.length - 1, next))].focus();
  }

  /** A matrix that is pointed at shows the word of that row. */
  function point(event) {
    const matrix = event.target.closest?.(`${VIEW} figure svg`);
    if (!matrix) return choose(event);
    const view = matrix.closest(VIEW);
    const words = wordsOf(view);
    const { top, height } = matrix.getBoundingClientRect();
    const query = Math.floor(((event.clientY - top) / height) * words.length);
    if (!words[query]) return;
    chosen = { query, text: words[query].title };
    show(view, query);
  }

  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("focusin", choose);
  document.addEventListener("keydown", step);

  new MutationObserver(() => {
    for (const view of document.querySelectorAll(`${VIEW}:not([data-is-known])`)) {
      view.dataset.isKnown = "";
      if (chosen && wordsOf(view)[chosen.query]?.title === chosen.text) show(view, chosen.query);
    }
  }).observe(document, { childList: true, subtree: true });
})();
