// Verifying citations: each law and article that a text names, looked up.

const FINDINGS = { exact: "已对上", article_absent: "没有这一条", law_not_in_corpus: "无法核对" };

async function verifyCitations() {
  const body = { text: byId("verify-text").value };
  if (byId("verify-scope").value) body.scope = byId("verify-scope").value;
  await showResult(byId("verify-result"), () => postJson("/verify-citations", body), verifyView);
}

/** Verify `text` in the box for that. */
function verifyText(text) {
  showPanel("verify");
  byId("verify-text").value = text.slice(0, 20000);
  verifyCitations();
}

function verifyView(answer) {
  const counts = Object.entries(FINDINGS)
    .map(([status, words]) => [words, answer.citations.filter((citation) => citation.status === status).length])
    .filter(([, count]) => count)
    .map(([words, count]) => `${words} ${count} 处`);
  const words = answer.citations.length ? `找到 ${answer.citations.length} 处引用：${counts.join("，")}` : "没有找到引用";
  return { words, nodes: [el("h3", { text: words }), warningList(answer.warnings), el("ol", { class: "cards" }, ...answer.citations.map(citationCard)), rawJson(answer)] };
}

function citationCard(citation) {
  const badge = el("span", { class: `finding ${citation.status}`, text: FINDINGS[citation.status] || citation.status });
  const standing = citation.standing ? el("span", { class: `standing ${citation.standing}`, text: STANDINGS[citation.standing] || citation.standing }) : null;
  const docs = [citation.doc, ...(citation.more_docs || [])].filter((doc) => doc && doc.contents);
  return el(
    "li",
    { class: "card finding-card" },
    el("p", { class: "raw" }, badge, standing, el("q", { text: citation.raw })),
    el("p", { class: "small", text: articleName(citation) }),
    citation.note ? el("p", { class: "small", text: citation.note }) : null,
    docs.length ? el("ol", { class: "cards inner" }, ...docs.map((doc, place) => articleCard(doc, { open: place === 0 }))) : null,
  );
}
