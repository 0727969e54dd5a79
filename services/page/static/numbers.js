// Numbers as people read them.

const MISSING = "–";

export const number = (value, digits = 3) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (size !== 0 && (size < 10 ** -digits || size >= 1e7)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 1 : digits });
};

export const fixed = (value, digits) =>
  value === null || value === undefined || !Number.isFinite(value) ? MISSING : value.toFixed(digits);

export const count = (value) =>
  value === null || value === undefined ? MISSING : Math.round(value).toLocaleString("en");

export const percent = (value, digits = 0) =>
  value === null || value === undefined ? MISSING : `${(100 * value).toFixed(digits)}%`;

export const duration = (seconds) => {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  const size = Math.abs(seconds);
  if (size < 0.001) return size === 0 ? "0 s" : `${(seconds * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${(seconds * 1000).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 59.95) return `${seconds.toFixed(1)} s`;
  if (size < 3599.5) return inTwo(seconds, "min", "s");
  if (size < 86370) return inTwo(seconds / 60, "h", "min");
  return `${(seconds / 86400).toFixed(1)} d`;
};

// Rounded before it is divided: never "1 min 60 s".
const inTwo = (small, large, unit) => `${Math.floor(Math.round(small) / 60)} ${large} ${Math.round(small) % 60} ${unit}`;

// Large counts on an axis, where there is no space for all digits.
export const short = (value) => (value >= 1e6 ? `${number(value / 1e6)} M` : value >= 1e3 ? `${number(value / 1e3)} k` : count(value));

export const ago = (epoch) => {
  const seconds = Date.now() / 1000 - epoch;
  return seconds < 2 ? "just now" : `${duration(Math.max(0, Math.floor(seconds)))} ago`;
};
