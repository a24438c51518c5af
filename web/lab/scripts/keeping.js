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
  if (globalThis.weightedClipIsPrivate) forget();
  rememberSecret();

  function rememberSecret() {
    try {
      localStorage.setItem(`${KEY}-secret`, location.pathname.split("/")[1]);
    } catch {
      // it is switched off: links open where the secret is put into them
    }
  }

  function forget() {
    try {
      localStorage.removeItem(KEY);
    } catch {
      // it is switched off: nothing was kept
    }
  }

  /** Content of an address or the storage, as an object; null if it is not ours. */
  function parsed(text) {
    try {
      const state = JSON.parse(text);
      return state && typeof state === "object" ? state : null;
    } catch {
      return null;
    }
  }

  function ofAddress() {
    try {
      return parsed(decodeURIComponent(location.hash.slice(1)));
    } catch {
      return null; // no such encoding
    }
  }

  function ofStorage() {
    try {
      return parsed(localStorage.getItem(KEY));
    } catch {
      return null; // it is switched off
    }
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
      const state = ofAddress() ?? ofStorage() ?? {};
      return fields.map(([name, allowed], i) => (isAllowed(state[name], allowed) ? state[name] : values[i]));
    },

    /** Keep the values as they are now. */
    save(fields, values) {
      if (globalThis.weightedClipIsPrivate) return [];
      const text = JSON.stringify(Object.fromEntries(fields.map(([name], i) => [name, values[i]])));
      clearTimeout(timer);
      timer = setTimeout(() => {
        try {
          history.replaceState(history.state, "", `#${encodeURIComponent(text)}`);
          localStorage.setItem(KEY, text);
        } catch {
          // a lone surrogate, or no storage: the page works without
        }
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
