// As checks.py: runs checks in turn, and prints one JSON line for each.
export const MODEL = process.env.MODEL
export const ASK = '4 lemon'
export const ITEMS = ['apple', 'lemon', 'pen']
const MANY = 50
const CHECK_MS = 120_000

export async function many(call) {
  const answers = await Promise.all(Array.from({ length: MANY }, () => call()))
  if (!answers.every(Boolean)) throw new Error(`an answer of ${MANY} is empty`)
}

export function assert(holds, said) {
  if (!holds) throw new Error(String(said ?? 'it does not hold'))
}

export async function run(checks) {
  for (const [check, body] of Object.entries(checks)) {
    let error = null
    let timer
    const late = new Promise((_, refuse) => {
      timer = setTimeout(() => refuse(new Error('too late')), CHECK_MS)
    })
    try {
      await Promise.race([body(), late])
    } catch (failed) {
      console.error(failed)
      error = String(failed).slice(0, 300)
    } finally {
      clearTimeout(timer)
    }
    console.log(JSON.stringify({ check, error }))
  }
}
