// The official TypeScript client against /mcp (MCP_URL, MCP_KEY) or a program on stdin and stdout (MCP_COMMAND, a JSON array). It prints one
// line of JSON for each step; what is right is for the test to say. With MCP_BOUND the endpoint is that of one sandbox, which it neither makes
// nor names.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { MCP_URL, MCP_KEY, MCP_COMMAND, MCP_BOUND } = process.env;
const tell = (step, value) => console.log(JSON.stringify({ step, value }));

function transport() {
  if (MCP_COMMAND) {
    const [command, ...args] = JSON.parse(MCP_COMMAND);
    return new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
  }
  return new StreamableHTTPClientTransport(new URL(MCP_URL), { requestInit: { headers: { Authorization: `ApiKey ${MCP_KEY}` } } });
}

const client = new Client({ name: "e2e", version: "1" });
await client.connect(transport());
tell("server", client.getServerVersion());
tell("tools", (await client.listTools()).tools.map((t) => t.name).sort());

async function call(name, args, options) {
  const result = await client.callTool({ name, arguments: args }, undefined, options);
  const text = JSON.parse(result.content[0].text);
  return result.isError ? text : { ...text, checked: JSON.stringify(text) === JSON.stringify(result.structuredContent) };
}

const { sandbox_id } = MCP_BOUND ? {} : await call("create_sandbox", { timeout_seconds: 300 });
tell("write", await call("write_file", { sandbox_id, path: "dir/notes.txt", content: "grüße\n" }));
tell("list", await call("list_files", { sandbox_id, path: "dir" }));
tell("command", await call("run_command", { sandbox_id, command: "cat dir/notes.txt; echo oops >&2; exit 3" }));
tell("python", await call("run_python", { sandbox_id, code: "import sys\nprint(sum(range(10)))\nprint(sys.version_info.major)" }));
tell("read", await call("read_file", { sandbox_id, path: "dir/notes.txt" }));

const progress = [];
const slow = await call("run_command", { sandbox_id, command: "for i in 1 2 3; do echo step $i; sleep 1; done" }, {
  onprogress: (p) => progress.push(p),
  resetTimeoutOnProgress: true,
});
tell("slow", slow);
tell("progress", progress);
tell("execution", await call("get_execution", { sandbox_id, execution_id: slow.execution_id }));

const long = await call("run_command", { sandbox_id, command: "seq 1 200000" });
tell("long", { ...long, stdout: { ...long.stdout, text: long.stdout.text.slice(0, 20), tail: long.stdout.tail.slice(-20) } });

const abort = new AbortController();
const cancelled = client.callTool(
  { name: "run_command", arguments: { sandbox_id, command: "echo begun; sleep 600", idempotency_key: `cancelled-${sandbox_id}` } },
  undefined,
  { signal: abort.signal, onprogress: () => abort.abort("enough") },
);
await cancelled.then(() => tell("cancelled", "answered"), (e) => tell("cancelled", String(e)));
for (let n = 0; n < 100; n++) {
  // Nothing of it runs any more once its process is gone.
  const left = await call("run_command", { sandbox_id, command: "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; done 2>/dev/null | grep -c '[s]leep 600'" });
  if (left.stdout.text.trim() === "0") {
    tell("gone", n);
    break;
  }
}

tell("refused", await call("read_file", { sandbox_id, path: "../../etc/passwd" }));
if (!MCP_BOUND) {
  tell("stop", await call("stop_sandbox", { sandbox_id }));
  tell("after", await call("run_command", { sandbox_id, command: "true" }));
}
await client.close();
