'use strict';
// Runs the CommonJS module behind an open descriptor, which has no path in a sandbox.
const fs = require('fs');
const Module = require('module');
const vm = require('vm');

const source = fs.readFileSync({program}, 'utf8');

try {
  new vm.Script(Module.wrap(source), { filename: 'answer.js' });
} catch (error) {
  fs.writeSync(3, `C${String(error).replace(/[^ -~]+/g, ' ').slice(0, 200)}\n`);
  process.exit(1);
}

// There is no /proc, through which /dev/stdin leads.
const readFileSync = fs.readFileSync;
fs.readFileSync = (path, ...rest) => readFileSync(path === '/dev/stdin' ? 0 : path, ...rest);

const main = new Module('/answer.js');
main.filename = '/answer.js';
main.paths = [];
process.mainModule = main;
process.argv = ['node', '/answer.js'];
main._compile(source, '/answer.js');
