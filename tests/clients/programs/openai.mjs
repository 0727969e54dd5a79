// `openai` for JavaScript: chat and Responses.
import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { ASK, ITEMS, MODEL, assert, many, run } from './checks.mjs'

const client = new OpenAI({ maxRetries: 0 })
const messages = [{ role: 'user', content: ASK }]
const Verdict = z.object({ right: z.boolean() })
const parameters = { type: 'object', properties: { item: { enum: ITEMS } }, required: ['item'], additionalProperties: false }

async function said(more = {}) {
  const asked = { model: MODEL, messages, max_tokens: 16, temperature: 0, ...more }
  return (await client.chat.completions.create(asked)).choices[0].message.content
}

await run({
  answer: async () => assert(await said()),
  stream: async () => {
    const asked = { model: MODEL, messages, max_tokens: 16, temperature: 0, stream: true }
    let text = ''
    for await (const part of await client.chat.completions.create(asked)) {
      text += part.choices[0]?.delta?.content ?? ''
    }
    assert(text === (await said()), text)
  },
  tools: async () => {
    const tools = [{ type: 'function', function: { name: 'price', strict: true, parameters } }]
    const asked = { model: MODEL, messages, max_tokens: 200, tools, tool_choice: 'required' }
    const answer = await client.chat.completions.create(asked)
    const [call] = answer.choices[0].message.tool_calls
    assert(ITEMS.includes(JSON.parse(call.function.arguments).item))
  },
  structured: async () => {
    const format = zodResponseFormat(Verdict, 'verdict')
    const asked = { model: MODEL, messages, max_tokens: 200, response_format: format }
    const answer = await client.chat.completions.parse(asked)
    assert(typeof answer.choices[0].message.parsed.right === 'boolean')
  },
  cancel: async () => {
    const asked = { model: MODEL, messages, max_tokens: 400, stream: true, ignore_eos: true }
    const parts = await client.chat.completions.create(asked)
    for await (const _ of parts) break
    parts.controller.abort()
  },
  fifty: () => many(said),
  responses: async () => {
    const asked = { model: MODEL, input: ASK, max_output_tokens: 16 }
    assert((await client.responses.create(asked)).output_text)
    const kinds = new Set()
    for await (const event of client.responses.stream(asked)) kinds.add(event.type)
    assert(kinds.has('response.output_text.delta'), [...kinds])
  },
})
