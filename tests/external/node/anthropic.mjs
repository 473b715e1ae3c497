// What Anthropic's SDK for Node gets from a gateway, as one JSON object: node anthropic.mjs URL
import Anthropic from "@anthropic-ai/sdk";

const url = process.argv[2];
const client = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0, timeout: 60_000 });
const message = { model: "smollm2", max_tokens: 8, messages: [{ role: "user", content: "Say hello." }] };
const weather = {
  name: "weather",
  description: "The weather in a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const said = {};

said.chat = (await client.messages.create(message)).content[0].text;
said.kinds = [];
const stream = client.messages.stream({
  ...message,
  system: [{ type: "text", text: "Be brief.", cache_control: { type: "ephemeral" } }],
});
stream.on("streamEvent", (event) => said.kinds.push(event.type));
said.stream = (await stream.finalMessage()).content[0].text;
const asked = { ...message, max_tokens: 80, temperature: 0, tools: [weather], tool_choice: { type: "any" } };
const used = await client.messages.stream(asked).finalMessage();
said.stop = used.stop_reason;
said.tool = used.content.at(-1);
const result = { type: "tool_result", tool_use_id: said.tool.id, content: "Sunny." };
said.turn = (
  await client.messages.create({
    ...message,
    tools: [weather],
    messages: [...message.messages, { role: "assistant", content: used.content }, { role: "user", content: [result] }],
  })
).usage.output_tokens;
said.beta = (await client.beta.messages.create({ ...message, betas: ["prompt-caching-2024-07-31"] })).type;
said.tokens = (await client.messages.countTokens({ model: "smollm2", messages: message.messages })).input_tokens;
said.models = [];
for await (const model of client.models.list()) said.models.push(model.id);
const { response } = await client.messages
  .create({ ...message, max_tokens: 1 }, { headers: { "X-Class": "batch" } })
  .withResponse();
said.class = response.headers.get("x-gridsched-class");
try {
  await client.messages.create({ ...message, model: "nobody" });
} catch (error) {
  said.error = { name: error.constructor.name, status: error.status, type: error.error?.type };
}
console.log(JSON.stringify(said));
