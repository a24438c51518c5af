/** Resolves after so long. */
export const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
