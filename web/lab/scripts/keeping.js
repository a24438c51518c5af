/**
 * Keeps what is typed and chosen in the stand-alone lab, in this browser's storage and behind the # of the page's
 * address, which no server is sent. web/lab/standalone.py says which values there are and which they can have. With
 * `weightedClipIsPrivate` nothing is kept, and what was kept before is deleted; a link can still be copied and opened.
 * Copied links are without the secret of the address; by what is stored here they open in this browser (access.py).
 */

globalThis.weightedClipKeeping = (() => {
  const KEY = "weighted-clip-lab";
  /** Milliseconds without a change before the address follows. */
  const QUIET_TIME = 300;
  let timer = 0;
  if (globalThis.weightedClipIsPrivate) attempted(() => localStorage.removeItem(KEY));
  // without storage, links open where the secret is put into them
  attempted(() => localStorage.setItem(`${KEY}-secret`, location.pathname.split("/")[1]));

  /** What a function gives; null where storage is switched off, or a text is not of ours. */
  function attempted(act) {
    try {
      return act();
    } catch {
      return null;
    }
  }

  /** The object in a text; null if it is none. */
  function parsed(text) {
    const state = JSON.parse(text);
    return state && typeof state === "object" ? state : null;
  }

  /** Whether a component can have a value. */
  function isAllowed(value, allowed) {
    if (allowed === "text") return typeof value === "string" && value.isWellFormed?.() !== false;
    if (Array.isArray(allowed)) return allowed.includes(value);
    if ("step" in allowed) return isStep(value, allowed);
    return Array.isArray(value) && value.every((one) => allowed.several.includes(one));
  }

  /** Whether a slider can have this value. */
  function isStep(value, { from, to, step }) {
    if (typeof value !== "number" || !(value >= from && value <= to)) return false;
    return step < 1 || Number.isInteger(value);
  }

  return {
    /** Initial values: those of the address, or else the last ones here, or else the current ones. */
    restore(fields, values) {
      const ofAddress = attempted(() => parsed(decodeURIComponent(location.hash.slice(1))));
      const state = ofAddress ?? attempted(() => parsed(localStorage.getItem(KEY))) ?? {};
      return fields.map(([name, allowed], i) => (isAllowed(state[name], allowed) ? state[name] : values[i]));
    },

    /** Keep the values as they are now. */
    save(fields, values) {
      if (globalThis.weightedClipIsPrivate) return [];
      const text = JSON.stringify(Object.fromEntries(fields.map(([name], i) => [name, values[i]])));
      clearTimeout(timer);
      timer = setTimeout(() => {
        // a lone surrogate cannot be encoded: the page works without
        attempted(() => {
          history.replaceState(history.state, "", `#${encodeURIComponent(text)}`);
          localStorage.setItem(KEY, text);
        });
      }, QUIET_TIME);
      return [];
    },

    /** Copy an address of the page with the values in it, without its secret; a line that says so. */
    async copyLink(fields, values) {
      const text = JSON.stringify(Object.fromEntries(fields.map(([name], i) => [name, values[i]])));
      const line = (told, kind) => `<p class='weighted-clip-${kind}' role='status'>${told}</p>`;
      const link = `${location.origin}/#${encodeURIComponent(text)}`;
      try {
        await navigator.clipboard.writeText(link);
        return line(`Copied, ${link.length.toLocaleString("en")} characters: opens with this prompt and these options.`, "note");
      } catch (error) {
        const told = document.createElement("p");
        told.append(`The browser did not let the link be copied (${error.message}); `, document.createElement("a"));
        told.lastChild.append("copy it here");
        told.lastChild.href = link;
        return line(told.innerHTML, "problem");
      }
    },
  };
})();
