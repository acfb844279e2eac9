// Talking to the service that the page came from. The key stands in a header, never in an address.

const BASE = new URL(".", location.href).pathname.replace(/\/$/, "");
const KEY_PLACE = "cg-rag-key";

/** What the service refused or could not do; `code` is its error code, or one of ours: unreachable, cut, stopped. */
class ServiceError extends Error {
  constructor(code, message, more = {}) {
    super(message);
    this.code = code;
    this.details = more.details || {};
    this.requestId = more.requestId || "";
    this.retryAfter = more.retryAfter || "";
  }
}

function savedKey() {
  try {
    return sessionStorage.getItem(KEY_PLACE) || "";
  } catch {
    return savedKey.kept || ""; // storage is switched off: kept until the page goes
  }
}

function saveKey(key) {
  savedKey.kept = key;
  try {
    if (key) sessionStorage.setItem(KEY_PLACE, key);
    else sessionStorage.removeItem(KEY_PLACE);
  } catch {
    // kept above
  }
}

/** Headers of a request. Keys are visible ASCII (docs/config.md), so that any of them can stand in a header. */
function headers(more = {}) {
  const key = savedKey();
  return key ? { ...more, "X-API-Key": key } : more;
}

async function ask(path, settings) {
  try {
    return await fetch(BASE + path, { cache: "no-store", ...settings });
  } catch (error) {
    if (error.name === "AbortError") throw new ServiceError("stopped", "已停止。");
    throw new ServiceError("unreachable", "连不上服务，请检查网络与服务是否在运行。");
  }
}

async function failure(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // a page of a proxy
  }
  const error = body && body.error;
  if (!error || !error.code) {
    return new ServiceError(`HTTP ${response.status}`, `服务前的代理返回了 HTTP ${response.status}，不是本服务的回答。`);
  }
  return new ServiceError(error.code, error.message, {
    details: error.details,
    requestId: body.request_id,
    retryAfter: response.headers.get("Retry-After") || "",
  });
}

async function answerOf(response) {
  if (!response.ok) throw await failure(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw new ServiceError("stopped", "已停止。");
    throw new ServiceError("cut", "回答在结束前中断。");
  }
}

async function getJson(path) {
  return answerOf(await ask(path, { headers: headers() }));
}

function posting(body, signal) {
  return { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
}

async function postJson(path, body, signal) {
  return answerOf(await ask(path, posting(body, signal)));
}

/** Hand every event to `take(name, data)` and return the data of `final`. Throws ServiceError, also for `error`. */
async function postStream(path, body, take, signal) {
  const response = await ask(path, posting(body, signal));
  if (!response.ok) throw await failure(response);
  if (!(response.headers.get("Content-Type") || "").startsWith("text/event-stream")) {
    throw new ServiceError("cut", "服务没有以事件流作答，可能被代理改写。");
  }
  const reader = response.body.getReader();
  const parser = new SseParser();
  for (;;) {
    const { done, value } = await readFrom(reader);
    if (done) throw new ServiceError("cut", "连接在回答结束前中断，请重试。");
    for (const event of parser.feed(value)) {
      const data = dataOf(event);
      if (event.name === "final") return data;
      if (event.name === "error") throw new ServiceError(data.code, data.message, { details: data.details, requestId: data.request_id });
      take(event.name, data);
    }
  }
}

function dataOf(event) {
  try {
    return JSON.parse(event.data);
  } catch {
    throw new ServiceError("cut", "事件流中有读不懂的内容，可能被代理改写。");
  }
}

async function readFrom(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw new ServiceError("stopped", "已停止。");
    throw new ServiceError("cut", "连接在回答结束前中断，请重试。");
  }
}
