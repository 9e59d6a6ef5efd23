"use strict";

/** The key of this tab, which is asked for when the server wants one and is kept until the tab closes. */
const KEY = "sleuth-key";

const GONE = "The server does not answer. It may have been stopped: start it again, then ask again.";
const LOST = "The connection was lost before the end of the answer. The server may have been stopped: ask again.";

/** As `fetch`, with the key; asks for it where it is missing or wrong, until the person gives none. `gone` is the error
 *  where the server does not answer. */
async function fetchWithKey(path, options = {}, gone = GONE) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await inWords(fetch(path, { ...options, headers }), gone);
  if (response.status !== 401) return response;
  sessionStorage.removeItem(KEY);
  const given = window.prompt(key ? "That key is wrong. Key of this server:" : "Key of this server:")?.trim();
  if (!given || !/^[!-~]+$/.test(given)) return response; // no header can hold another one
  sessionStorage.setItem(KEY, given);
  return fetchWithKey(path, options, gone);
}

/** Asks a question and yields the chunks of the answer as they come. Throws an error with the server's own line. */
async function* ask(question, signal) {
  const response = await fetchWithKey("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: question }], stream: true }),
    signal,
  });
  if (!response.ok) throw new Error(await problem(response));
  for await (const event of events(response.body)) {
    if (event === "[DONE]") return;
    const chunk = JSON.parse(event);
    if (chunk.error) throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error(LOST);
}

/** The data of server-sent events: one line each, followed by a blank line. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await inWords(reader.read(), LOST);
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) yield part.slice("data: ".length);
  }
}

/** The result of a request. A browser's error about the network, a TypeError, is replaced by `line`. */
async function inWords(request, line) {
  try {
    return await request;
  } catch (error) {
    throw error instanceof TypeError ? new Error(line) : error;
  }
}

async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** The one model of `/v1/models`. */
async function servedModel() {
  const response = await fetchWithKey("v1/models");
  if (!response.ok) throw new Error(await problem(response));
  return (await response.json()).data[0];
}
