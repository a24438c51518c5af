/** Requests to our routes of the server (nodes/base/routes.py), as JSON. */

const ROUTE = "/weighted_clip/inspect";
const CHECK_ROUTE = "/weighted_clip/check";
const CONVERT_ROUTE = "/weighted_clip/convert";
const INFOTEXT_ROUTE = "/weighted_clip/infotext";
const PICTURE_ROUTE = "/weighted_clip/picture";
/** The status of a busy server (MAX_AT_ONCE of nodes/base/routes.py). */
const BUSY = 429;
/** Milliseconds until a busy server is asked again. */
const BUSY_TIME = 250;

/**
 * The server's response to a request, asked for again while the server is busy.
 * @param {(request: object) => Promise<Response>} send Sends the request.
 * @param {string} body The request as JSON.
 * @param {AbortSignal} [signal] Ends it.
 */
export async function post(send, body, signal) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body, signal };
  for (;;) {
    const response = await send(request).catch((error) => {
      throw signal?.aborted ? error : new Error("The server does not answer");
    });
    if (response.status !== BUSY) return response;
    await new Promise((done) => setTimeout(done, BUSY_TIME));
  }
}

/**
 * Functions that ask the server.
 * @param {object} api ComfyUI's module.
 */
export function requestsTo(api) {
  /** Resolves with the previous request: the nodes of a page take turns. */
  let turn = Promise.resolve();

  /** Ask when it is this request's turn, repeatedly while the server is busy. */
  function askInTurn(route, body, signal) {
    const answer = turn.then(() => askNow(route, body, signal));
    turn = answer.catch(() => {});
    return answer;
  }

  async function askNow(route, body, signal) {
    const response = await post((request) => api.fetchApi(route, request), body, signal);
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error ?? `The server answers ${response.status}: restart ComfyUI`);
    return answer;
  }

  return {
    /** Views (web/inspection.py). */
    ask: (body, signal) => askInTurn(ROUTE, body, signal).then((answer) => answer.views),
    /** The problems of a node (nodes/base/checks.py). */
    check: (body, signal) => askInTurn(CHECK_ROUTE, body, signal),
    /** A prompt in another syntax (web/inspection.py). */
    convert: (request) => askNow(CONVERT_ROUTE, JSON.stringify(request)),
    /** The prompt, negative prompt and settings in generation data (web/inspection.py). */
    takeApart: (text) => askNow(INFOTEXT_ROUTE, JSON.stringify({ text })),
    /** Which files that generation data names the server has (nodes/base/routes.py). */
    pictureOf: (text) => askNow(PICTURE_ROUTE, JSON.stringify({ text })),
    /** Address of a file that the server has made. */
    urlOf: (file) => api.apiURL(`/view?${new URLSearchParams(file)}`),
  };
}
