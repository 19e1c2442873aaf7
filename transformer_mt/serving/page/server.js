// Requests to the server. A request waits while the server is away or busy and while a token is
// typed in, so that whoever asks only has to deal with answers and with what is wrong for good.

import { word } from "./words.js";

const PAUSE = 2_000; // milliseconds between attempts to reach a server that does not answer
const PATIENCE = 100_000; // milliseconds after which no answer counts as a broken connection
const MOST_BREAKS = 4; // of the connection during one request
const MOST_FAILURES = 5; // answers 503 to one request

/** What the page does when the server is away, is back, is busy, or wants a token. */
export const listeners = {
  away: () => {},
  back: () => {},
  busy: (seconds) => {},
  token: async (wasWrong) => "",
};

/** A request that was refused. The message is the server's, or says what is wrong. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    this.isAboutTerms = status === 422 && message.startsWith("terms");
  }
}

let token = storedToken();
let back = null; // a promise that is kept when the server answers again
let newToken = null; // a promise that is kept when a token was given

/** An address below the page's own, which may have a path in front of it. */
export function address(path) {
  return new URL(path.replace(/^\//, ""), new URL(".", location.href));
}

/** Uses this token from now on. */
export function useToken(text) {
  token = text;
  try {
    sessionStorage.setItem("transformer_mt.token", text);
  } catch {
    // The browser stores nothing. The token then lasts as long as the page.
  }
}

/**
 * The server's JSON answer to GET, or to POST of `body` if there is one. Throws a Problem, or an
 * AbortError once `signal` is aborted.
 */
export async function ask(path, body, signal) {
  let breaks = 0;
  let failures = 0;
  for (;;) {
    const used = token;
    const reply = await attempt(path, body, signal);
    signal?.throwIfAborted();
    if (reply === null) {
      breaks += 1;
      if (breaks > MOST_BREAKS) throw new Problem(0, word("broken"));
      await orAborted(untilBack(), signal);
      continue;
    }
    const { status, answer, retryAfter } = reply;
    if (status === 200) {
      if (answer === undefined) throw new Problem(status, word("not_json"));
      return answer;
    }
    failures += status === 503;
    if (status === 401) {
      await orAborted(untilToken(used), signal);
    } else if (status === 429 || (status === 503 && failures <= MOST_FAILURES)) {
      const seconds = retryAfter * 2 ** Math.max(0, failures - 1);
      listeners.busy(seconds);
      await orAborted(sleep(seconds * 1_000), signal);
    } else {
      const detail = answer?.detail;
      throw new Problem(status, typeof detail === "string" ? detail : word("status", status));
    }
  }
}

/**
 * The translations of texts without line ends. A request that is too large or takes too long is
 * asked again in halves; what is refused alone has a Problem in place of its translation.
 */
export async function translations(texts, settings, signal) {
  try {
    const answer = await ask("translate", { text: texts, ...settings }, signal);
    return answer.translations;
  } catch (problem) {
    if (problem.isAboutTerms || ![413, 422, 503].includes(problem.status)) throw problem;
    if (texts.length === 1 && problem.status !== 503) return [problem];
    if (texts.length === 1) throw problem;
    const half = texts.length >> 1;
    const before = await translations(texts.slice(0, half), settings, signal);
    return before.concat(await translations(texts.slice(half), settings, signal));
  }
}

/** Resolves after some milliseconds. */
export function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** One request: {status, answer, retryAfter}, or null if the server could not be reached. */
async function attempt(path, body, signal) {
  const stop = new AbortController();
  const abort = () => stop.abort();
  const timer = setTimeout(abort, PATIENCE);
  signal?.addEventListener("abort", abort);
  const headers = { "Content-Type": "application/json" };
  // No service has another token, and a header can't hold all: the service then asks for its own.
  if (/^[!-~]+$/.test(token ?? "")) headers.Authorization = `Bearer ${token}`;
  try {
    const response = await fetch(address(path), {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      cache: "no-store",
      signal: stop.signal,
    });
    // A proxy answers these if the server behind it is away.
    if (response.status === 502 || response.status === 504) return null;
    const text = await response.text();
    const retryAfter = Math.max(1, Number.parseInt(response.headers.get("Retry-After"), 10) || 1);
    return { status: response.status, answer: parsed(text), retryAfter };
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Is kept when the server answers. All requests that wait share one promise. */
function untilBack() {
  back ??= (async () => {
    let isAway = false;
    while ((await attempt("health")) === null) {
      if (!isAway) listeners.away();
      isAway = true;
      await sleep(PAUSE);
    }
    back = null;
    if (isAway) listeners.back();
  })();
  return back;
}

/** Is kept when there is another token than the one that was refused. */
function untilToken(refused) {
  if (token !== refused) return Promise.resolve();
  newToken ??= listeners.token(Boolean(refused)).then((text) => {
    newToken = null;
    useToken(text);
  });
  return newToken;
}

/** The promise, or an AbortError as soon as the signal is aborted. */
function orAborted(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort);
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

function storedToken() {
  try {
    return sessionStorage.getItem("transformer_mt.token");
  } catch {
    return null;
  }
}
