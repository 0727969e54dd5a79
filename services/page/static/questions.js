// Asking the server. A key, where one is needed, stays in this tab.

const KEY = "millrace.key";

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message || `the server answered ${status}`);
    this.status = status;
  }
}

export const remember = (key) => sessionStorage.setItem(KEY, key);

function headers() {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function answered(path, options = {}) {
  const response = await fetch(path, { headers: headers(), ...options });
  if (response.ok) return response;
  let body = null;
  try {
    body = await response.json();
  } catch {
    body = null; // the status says enough
  }
  throw new Refused(response.status, body?.error);
}

// A parameter that is a list is given once for each of its values.
function address(path, parameters) {
  const each = Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const given = each.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return `api/${path}${query ? `?${query}` : ""}`;
}

export const ask = async (path, parameters = {}) => (await answered(address(path, parameters))).json();

export const file = async (path, parameters = {}) => (await answered(address(path, parameters))).blob();

export async function send(path, body) {
  const options = { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify(body) };
  return (await answered(`api/${path}`, options)).json();
}

// Draws what was asked last: answers may overtake each other, and a refusal is shown as well.
export function newest(question, draw, refused) {
  let turn = 0;
  return async () => {
    const mine = (turn += 1);
    try {
      const found = await question();
      if (mine === turn) draw(found);
    } catch (problem) {
      if (mine === turn) refused(problem);
    }
  };
}

export const FOLLOWING = "following";

// Server-sent events by fetch: EventSource cannot show a key. `linked` is told how that goes; what is
// gone, or refused, is asked for no more.
export async function follow(path, changed, linked, signal) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const response = await answered(`api/${path}`, { signal });
      linked(FOLLOWING);
      pause = 500;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        if (events.some((event) => event.startsWith("event: change"))) changed();
        if (events.some((event) => event.startsWith("event: gone"))) return linked("gone");
      }
    } catch (problem) {
      if (signal.aborted) return;
      if (problem instanceof Refused && problem.status < 500) return linked(problem.status === 404 ? "gone" : "refused");
    }
    linked("no connection");
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(10000, 2 * pause);
  }
}
