// Server-sent events from bytes cut anywhere: the twin of core/sse.py, held to it by a test. No I/O.
// https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream

class SseParser {
  constructor() {
    this.decoder = new TextDecoder(); // takes a BOM off the beginning, and makes U+FFFD of what is no UTF-8
    this.begun = ""; // the beginning of a line whose end has not come
    this.afterCr = false;
    this.forget();
  }

  /** The events that end in `bytes`, as `{name, data}`; an event that the stream breaks off in is none. */
  feed(bytes) {
    let text = this.decoder.decode(bytes, { stream: true });
    if (!text) return [];
    if (this.afterCr && text.startsWith("\n")) text = text.slice(1);
    this.afterCr = false;
    if (!text) return [];
    this.afterCr = text.endsWith("\r");
    const lines = (this.begun + text).split(/\r\n|\r|\n/);
    this.begun = lines.pop();
    return lines.flatMap((line) => this.take(line));
  }

  take(line) {
    if (line) {
      this.field(line);
      return [];
    }
    const events = this.data.length ? [{ name: this.name || "message", data: this.data.join("\n") }] : [];
    this.forget();
    return events;
  }

  field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.data.push(value);
    else if (name === "event") this.name = value;
  }

  forget() {
    this.name = "";
    this.data = [];
  }
}
