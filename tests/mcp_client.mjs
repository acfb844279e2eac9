// The official TypeScript client: lists the tools, calls each, prints one line of JSON.
// node tests/mcp_client.mjs NODE_MODULES URL CALLS MILLISECONDS   (CALLS: JSON, tool name -> arguments; the rest is how
// long the client waits for a sign of life)
import { pathToFileURL } from "node:url";

const [modules, url, calls, patience] = process.argv.slice(2);
const sdk = (file) => import(pathToFileURL(`${modules}/@modelcontextprotocol/sdk/dist/esm/client/${file}`).href);
const { Client } = await sdk("index.js");
const { StreamableHTTPClientTransport } = await sdk("streamableHttp.js");

const client = new Client({ name: "test", version: "0" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const results = {};
let progress = 0;
for (const [name, args] of Object.entries(JSON.parse(calls))) {
  const options = {
    timeout: Number(patience),
    resetTimeoutOnProgress: true,
    onprogress: () => { progress += 1; },
  };
  results[name] = (await client.callTool({ name, arguments: args }, undefined, options)).structuredContent;
}
await client.close();
console.log(JSON.stringify({ tools, results, progress }));
