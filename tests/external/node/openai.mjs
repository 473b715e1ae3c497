// What OpenAI's SDK for Node gets from a gateway, as one JSON object: node openai.mjs URL
import OpenAI, { toFile } from "openai";

const url = process.argv[2];
let requests = 0;
const counted = (...args) => {
  requests += 1;
  return fetch(...args);
};
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, timeout: 60_000 });
const patient = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", fetch: counted });
const chat = { model: "smollm2", messages: [{ role: "user", content: "Say hello." }], max_tokens: 8, temperature: 0 };
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "The weather in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const schema = { type: "object", properties: { large: { type: "boolean" } }, required: ["large"] };
const said = {};

said.chat = (await client.chat.completions.create(chat)).choices[0].message.content;
said.stream = [];
for await (const piece of await client.chat.completions.create({ ...chat, stream: true })) {
  if (piece.choices[0]?.delta?.content) said.stream.push(piece.choices[0].delta.content);
}
const asked = { ...chat, tools: [weather], tool_choice: "required", max_tokens: 80 };
said.tool = (await client.chat.completions.create(asked)).choices[0].message.tool_calls[0].function;
const runner = client.chat.completions.stream(asked);
said.streamedTool = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0].function;
said.schema = (
  await client.chat.completions.create({
    ...chat,
    max_tokens: 40,
    response_format: { type: "json_schema", json_schema: { name: "city", schema } },
  })
).choices[0].message.content;
said.embeddings = (await client.embeddings.create({ model: "minilm", input: ["a cat", "a train"] })).data.map(
  (item) => item.embedding.length,
);
said.response = (await client.responses.create({ model: "smollm2", input: "Say hello.", max_output_tokens: 16 })).output_text;
said.responseEvents = [];
const events = await client.responses.create({ model: "smollm2", input: "hi", max_output_tokens: 16, stream: true });
for await (const event of events) said.responseEvents.push(event.type);
said.models = [];
for await (const model of client.models.list()) said.models.push(model.id);
said.retrieved = (await client.models.retrieve("minilm")).id;
const { response } = await client.chat.completions
  .create({ ...chat, max_tokens: 1 }, { headers: { "X-Class": "batch" } })
  .withResponse();
said.class = response.headers.get("x-gridsched-class");
try {
  await patient.chat.completions.create({ ...chat, model: "nobody" });
} catch (error) {
  said.error = { name: error.constructor.name, code: error.code, status: error.status };
}
try {
  await patient.chat.completions.create({ ...chat, model: "smollm2-cold", gridsched: { warm_only: true } });
} catch (error) {
  said.refusal = { name: error.constructor.name, code: error.code, status: error.status };
}
said.requests = requests;

const lines = ["one", "two"].map((name) =>
  JSON.stringify({ custom_id: name, method: "POST", url: "/v1/chat/completions", body: { ...chat, max_tokens: 2 } }),
);
const file = await client.files.create({
  file: await toFile(Buffer.from(lines.join("\n")), "lines.jsonl"),
  purpose: "batch",
});
let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
});
for (let tries = 0; tries < 600 && !batch.output_file_id; tries += 1) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  batch = await client.batches.retrieve(batch.id);
}
const answers = await (await client.files.content(batch.output_file_id)).text();
said.batch = answers
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line).custom_id)
  .sort();
console.log(JSON.stringify(said));
