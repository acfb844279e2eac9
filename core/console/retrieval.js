// The retrieval debugger: which articles, and what each stage gave them.

const STAGES = { exact: "点名条文", law: "点名法规", lexical: "字面", dense: "向量", fused: "融合", rerank: "重排", mixed: "合并" };
const TIMES = { exact_ms: "点名", embed_ms: "嵌入", lexical_ms: "字面", dense_ms: "向量", fuse_ms: "融合", rerank_ms: "重排", read_ms: "读取", total_time_ms: "合计" };

async function debugRetrieval() {
  const result = byId("retrieval-result");
  const body = { query: byId("retrieval-query").value, include_debug: true };
  if (byId("retrieval-scope").value) body.scope = byId("retrieval-scope").value;
  if (byId("retrieval-topk").value) body.topk = Number(byId("retrieval-topk").value);
  await showResult(result, () => postJson("/retrieve-rerank", body), retrievalView);
}

/** Fill `result` with what `work` brings, or with why it did not. */
async function showResult(result, work, view) {
  result.hidden = false;
  result.replaceChildren(el("p", { class: "status" }, el("span", { class: "spinner", "aria-hidden": "true" }), "正在处理"));
  announce("正在处理");
  try {
    const { nodes, words } = view(await work());
    result.replaceChildren(...nodes.filter(Boolean));
    announce(words);
    result.focus();
  } catch (error) {
    result.replaceChildren(errorBox(error));
    if (error.code === "unauthorized") openService("需要密钥，或密钥不正确。");
  }
}

function retrievalView(answer) {
  const docs = answer.retrieval_docs;
  const names = stageNames(docs);
  const words = `检索到 ${docs.length} 条${answer.cache.hit ? "（来自缓存）" : ""}`;
  const debug = answer.debug || {};
  const facts = [
    ["规范化问题", debug.normalised_query],
    ["补充用语", (debug.expansions || []).join("、") || "无"],
    ["检索方式", debug.retrieval_method],
    ["重排", answer.rerank.applied ? answer.rerank.method : "未重排"],
    ["指纹", debug.fingerprint],
    ["请求", answer.request_id],
  ].filter(([, value]) => value);
  return {
    words,
    nodes: [
      el("h3", { text: words }),
      warningList(answer.warnings),
      timesList(answer.runtime_stats),
      docs.length ? stageTable(docs, names) : null,
      el("dl", { class: "facts small" }, ...facts.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])),
      rawJson(answer),
    ],
  };
}

/** The stages that scored any of `docs`, in the order of the work. */
function stageNames(docs) {
  const found = new Set(docs.flatMap((doc) => Object.keys((doc.debug || {}).stages || {})));
  return [...Object.keys(STAGES).filter((name) => found.has(name)), ...[...found].filter((name) => !(name in STAGES))];
}

function timesList(stats) {
  return el("ul", { class: "chips", "aria-label": "耗时" }, ...Object.entries(stats).map(([name, value]) => el("li", { text: `${TIMES[name] || name} ${milliseconds(value)}` })));
}

function stageTable(docs, names) {
  const most = Object.fromEntries(names.map((name) => [name, Math.max(...docs.map((doc) => doc.debug.stages[name] ?? 0))]));
  const head = el("tr", {}, ...["序", "条文", "得分", ...names.map((name) => STAGES[name] || name)].map((text) => el("th", { scope: "col", text })));
  const rows = docs.map((doc, place) => stageRow(doc, place + 1, names, most));
  const table = el("table", { class: "scores" }, el("caption", { class: "unseen", text: "各条文在各阶段的得分" }), el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "各阶段得分表，可左右滚动" }, table);
}

function stageRow(doc, rank, names, most) {
  const text = el("details", {}, el("summary", { text: articleName(doc) }), el("p", { class: "contents", text: doc.contents }), furtherFields(doc));
  const cells = names.map((name) => stageCell(doc.debug.stages[name], most[name]));
  return el("tr", {}, el("td", { class: "rank", text: String(rank) }), el("th", { scope: "row" }, text), el("td", { class: "figure", text: doc.score.toFixed(3) }), ...cells);
}

function stageCell(score, most) {
  if (score === undefined) return el("td", { class: "figure none", text: "–" });
  const bar = most > 0 ? el("meter", { min: "0", max: String(most), value: String(Math.max(0, score)), "aria-hidden": "true" }) : null;
  return el("td", { class: "figure" }, score.toFixed(3), bar);
}
