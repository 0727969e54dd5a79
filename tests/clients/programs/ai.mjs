// The AI SDK (`ai`), whose OpenAI provider speaks Responses unless it is told to chat.
import { createOpenAI } from '@ai-sdk/openai'
import { Output, generateText, streamText, tool } from 'ai'
import { z } from 'zod'
import { ASK, MODEL, assert, many, run } from './checks.mjs'

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL })
const models = [openai(MODEL), openai.chat(MODEL)]
const asked = { prompt: ASK, maxOutputTokens: 16, maxRetries: 0 }
const price = tool({
  description: 'of one',
  strict: true,
  inputSchema: z.object({ item: z.enum(['apple', 'lemon', 'pen']) }),
})

async function said() {
  return (await generateText({ ...asked, model: openai.chat(MODEL) })).text
}

await run({
  answer: async () => assert(await said()),
  stream: async () => {
    for (const model of models) {
      let text = ''
      for await (const part of streamText({ ...asked, model }).textStream) text += part
      assert(text, model.provider)
    }
  },
  tools: async () => {
    for (const model of models) {
      const more = { tools: { price }, toolChoice: 'required', maxOutputTokens: 200 }
      const { toolCalls } = await generateText({ ...asked, ...more, model })
      assert(toolCalls.length === 1 && toolCalls[0].toolName === 'price', model.provider)
    }
  },
  structured: async () => {
    for (const model of models) {
      const output = Output.object({ schema: z.object({ right: z.boolean() }) })
      const done = await generateText({ ...asked, output, maxOutputTokens: 200, model })
      assert(typeof done.output.right === 'boolean', model.provider)
    }
  },
  cancel: async () => {
    const stop = new AbortController()
    const more = { maxOutputTokens: 400, abortSignal: stop.signal }
    for await (const _ of streamText({ ...asked, ...more, model: models[1] }).textStream) break
    stop.abort()
  },
  fifty: () => many(said),
  responses: async () => assert((await generateText({ ...asked, model: models[0] })).text),
})
