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
  if (size < 60) return `${seconds.toFixed(1)} s`;
  if (size < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (size < 86400) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} d`;
};

export const ago = (epoch) => {
  const seconds = Date.now() / 1000 - epoch;
  return seconds < 2 ? "just now" : `${duration(Math.max(0, Math.floor(seconds)))} ago`;
};
