"""The API reference as a web page, drawn by a script from `/v1/openapi.json`. It loads nothing from other servers.

The page's Content-Security-Policy allows its own script and style by their digests, requests to this server, and
nothing else. Everything from the document is inserted as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; text-transform: capitalize; }
details { border-top: 1px solid var(--line); } summary { padding: .45rem 0; cursor: pointer; }
code, pre, .method { font-family: ui-monospace, monospace; font-size: .9em; }
.method { display: inline-block; width: 4.5rem; font-weight: 600; } .what { opacity: .75; margin-left: .75rem; }
table { border-collapse: collapse; width: 100%; margin: .25rem 0 1rem; }
td, th { text-align: left; vertical-align: top; padding: .2rem .75rem .2rem 0; border-top: 1px solid var(--line); }
pre { overflow: auto; padding: .75rem; border: 1px solid var(--line); border-radius: 6px; }
input { font: inherit; width: 100%; box-sizing: border-box; margin: 1rem 0; padding: .4rem .6rem; }
"""

SCRIPT = """
'use strict';
const make = (tag, text, ...children) => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  node.append(...children);
  return node;
};
const kind = (schema) => {
  if (!schema) return '';
  if (schema.$ref) return schema.$ref.split('/').pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(' or ');
  if (schema.type === 'array') return 'list of ' + kind(schema.items);
  return [schema.type, schema.enum && schema.enum.join(' | ')].filter(Boolean).join(': ');
};
let api = {};
const resolve = (part) => part.$ref ? api.components.responses[part.$ref.split('/').pop()] : part;
const table = (head, rows) => make('table', '',
  make('tr', '', ...head.map((cell) => make('th', cell))),
  ...rows.map((row) => make('tr', '', ...row.map((cell) => make('td', cell)))));
const bodies = (content) => Object.entries(content || {})
  .map(([media, part]) => media + ': ' + kind(part.schema)).join(', ');
const operation = (method, path, op) => {
  const name = make('span', method.toUpperCase()); name.className = 'method';
  const what = make('span', op.summary); what.className = 'what';
  const node = make('details', '', make('summary', '', name, make('code', path), what));
  node.dataset.text = (method + ' ' + path + ' ' + op.summary + ' ' + op.description).toLowerCase();
  if (op.description) node.append(make('p', op.description));
  if (op.parameters.length) node.append(table(['parameter', 'in', 'type', ''], op.parameters.map(
    (p) => [p.name + (p.required ? ' *' : ''), p.in, kind(p.schema), p.description || ''])));
  if (op.requestBody) node.append(make('p', 'Body: ' + bodies(op.requestBody.content)));
  node.append(table(['status', 'meaning', 'body'], Object.entries(op.responses).map(
    ([status, given]) => [status, resolve(given)]).map(([status, r]) => [status, r.description, bodies(r.content)])));
  return node;
};
fetch('/v1/openapi.json').then((answer) => answer.json()).then((loaded) => {
  api = loaded;
  const main = document.querySelector('main');
  main.replaceChildren(make('h1', api.info.title + ' ' + api.info.version), make('p', api.info.description));
  const search = make('input'); search.placeholder = 'Find a call'; search.setAttribute('aria-label', 'Find a call');
  main.append(search);
  for (const tag of api.tags) {
    const section = make('section', '', make('h2', tag.name));
    for (const [path, methods] of Object.entries(api.paths))
      for (const [method, op] of Object.entries(methods))
        if (op.tags[0] === tag.name) section.append(operation(method, path, op));
    main.append(section);
  }
  const types = make('section', '', make('h2', 'types'));
  for (const [name, schema] of Object.entries(api.components.schemas))
    types.append(make('details', '', make('summary', name), make('pre', JSON.stringify(schema, null, 2))));
  main.append(types);
  search.addEventListener('input', () => {
    const wanted = search.value.toLowerCase();
    for (const node of main.querySelectorAll('details[data-text]')) node.hidden = !node.dataset.text.includes(wanted);
  });
});
"""

PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>DriftQ API</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<style>{STYLE}</style></head>"
    '<body><main><p>The document itself is at <a href="/v1/openapi.json">/v1/openapi.json</a>.</p></main>'
    f"<script>{SCRIPT}</script></body></html>"
)


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
)
