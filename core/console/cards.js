// Articles as cards that open.

const STANDINGS = { in_force: "现行", amended: "已修改", repealed: "已废止" };
const FIELD_NAMES = { chapter: "章节", status: "状态", effective_date: "施行日期", version_date: "文本日期", source: "来源", doc_id: "编号", hazard_category: "隐患分类" };
const SHOWN_ELSEWHERE = new Set(["law_name", "article_number", "contents", "score", "debug"]);

/** What an article is called in answers. */
function articleName(doc) {
  return [doc.law_name, doc.article_number].filter(Boolean).join(" ");
}

/** One article. `number` is what it is cited by, "" for none. */
function articleCard(doc, { number = "", open = false, badge = null } = {}) {
  const title = el("span", { class: "card-title" }, el("span", { class: "law", text: doc.law_name }), el("span", { class: "article", text: doc.article_number || "" }));
  const summary = el("summary", {}, number === "" ? null : el("span", { class: "number", text: number }), title, badge);
  const details = el("details", { open }, summary, el("p", { class: "contents", text: doc.contents || "" }), furtherFields(doc));
  return el("li", { class: "card", tabindex: "-1", "aria-label": `${number === "" ? "" : `证据 ${number}：`}${articleName(doc)}` }, details);
}

function furtherFields(doc) {
  const fields = Object.entries(doc).filter(([name, value]) => !SHOWN_ELSEWHERE.has(name) && ["string", "number"].includes(typeof value) && value !== "");
  if (!fields.length) return null;
  return el("dl", { class: "facts small" }, ...fields.flatMap(([name, value]) => [el("dt", { text: FIELD_NAMES[name] || name }), el("dd", { text: value })]));
}

/** Open `card`, bring it into view, and leave a way back to `origin`. */
function openCard(card, origin) {
  const outer = card.parentElement.closest("details");
  if (outer) outer.open = true;
  card.querySelector("details").open = true;
  card.querySelector(".back")?.remove();
  card.querySelector("details").append(el("button", { type: "button", class: "button back", text: "返回引用处", on: () => goTo(origin) }));
  card.classList.remove("flash");
  void card.offsetWidth; // starts the animation anew
  card.classList.add("flash");
  goTo(card);
}

/** A closed list of what was said by the service in numbers or JSON, for those who want to see it. */
function rawJson(payload) {
  const shown = el("pre", { tabindex: "0", "aria-label": "原始 JSON" });
  const details = el("details", { class: "more" }, el("summary", { text: "原始 JSON" }), shown);
  details.addEventListener("toggle", () => write(shown, details.open ? JSON.stringify(payload, null, 2) : ""));
  return details;
}

function warningList(warnings) {
  if (!warnings || !warnings.length) return null;
  return el("ul", { class: "warnings", "aria-label": "提示" }, ...warnings.map((text) => el("li", { text })));
}

/** An error as the service told it, with what to do about it. */
function errorBox(error) {
  const facts = [error.code, error.requestId && `请求 ${error.requestId}`, error.retryAfter && `${error.retryAfter} 秒后可重试`];
  return el("div", { class: "error", role: "alert" }, el("p", { text: error.message }), el("p", { class: "small", text: facts.filter(Boolean).join(" · ") }));
}
