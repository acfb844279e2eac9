// The conversation of this page: its turns, kept in memory alone, and what of them goes along with the next question.

const MAX_HISTORY_TURNS = 6; // docs/vision.md
const MAX_HISTORY_CHARACTERS = 20000;
const EXAMPLES = ["脚手架基础积水怎么办", "电焊工没有证能不能动火", "基坑多深要编专项方案"];

const talk = { turns: [], running: null };

/** The finished turns as the service takes them: `{query, answer, turn_index}`, the last six. */
function historyOf(turns) {
  return turns
    .filter((turn) => turn.ok)
    .slice(-MAX_HISTORY_TURNS)
    .map((turn) => ({ query: turn.query.slice(0, MAX_HISTORY_CHARACTERS), answer: turn.answer.slice(0, MAX_HISTORY_CHARACTERS), turn_index: turn.number }));
}

/** Photos as the service takes them; one that an earlier turn brought says so. */
function imagesOf(photos, number) {
  return photos.map((photo) => (photo.turn === null || photo.turn === number ? { data: photo.data } : { data: photo.data, source_turn_index: photo.turn }));
}

/** Ask `query` in `mode`; resolves when it is answered, or is not. One question at a time. */
async function startTurn(mode, query, photos, options) {
  if (talk.running) return;
  const turn = new Turn(talk.turns.length, mode, query, photos, () => startTurn(mode, query, photos, options));
  const body = mode === "rag" ? { query, ...options } : { question: query, images: imagesOf(photos, turn.number), ...options };
  const history = mode === "rag" || !byId("with-history").checked ? [] : historyOf(talk.turns);
  if (history.length) body.history = history;
  for (const photo of photos) photo.turn ??= turn.number;
  talk.turns.push(turn);
  talk.running = turn;
  byId("welcome").hidden = true;
  byId("thread").append(turn.node);
  turn.node.scrollIntoView({ block: "start" });
  showRunning();
  await turn.run(body);
  // Photos of a turn that came to nothing are new to the next one.
  if (!turn.ok) for (const photo of photos) if (photo.turn === turn.number) photo.turn = null;
  if (talk.running === turn) talk.running = null;
  showRunning();
  showTray();
}

function showRunning() {
  const send = byId("send");
  write(send, talk.running ? "停止" : "发送");
  send.classList.toggle("stopping", Boolean(talk.running));
}

function forgetTalk() {
  if (talk.running) talk.running.stop();
  talk.turns.flatMap((turn) => turn.photos).forEach(forgetPhoto);
  talk.turns = [];
  talk.running = null;
  byId("thread").replaceChildren();
  byId("welcome").hidden = false;
}

function showExamples() {
  byId("examples").append(
    ...EXAMPLES.map((text) => el("li", {}, el("button", { type: "button", class: "example", text, on: () => askExample(text) }))),
  );
}

function askExample(text) {
  chooseMode("rag");
  startTurn("rag", text, [], optionsOf("rag"));
}
