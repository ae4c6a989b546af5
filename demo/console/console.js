// A console over the lister's API: list, filter, sort, next page, who am I, why hidden. No framework, nothing stored.
'use strict';

const $ = (id) => document.getElementById(id);
const state = { collections: [], order: '', next: '' };

function show(element, visible) { element.hidden = !visible; }

function complain(text) {
  $('problem').textContent = text;
  show($('problem'), text !== '');
}

// Answers are JSON; errors are application/problem+json (RFC 9457).
async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(new URL(path, $('url').value), {
      ...options,
      headers: { ...(options.headers || {}), Authorization: `Bearer ${$('token').value}` },
    });
  } catch {
    throw new Error('The lister cannot be reached.');
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(`${answer.status} ${body.title || ''} ${body.detail || ''}`.trim());
  return body;
}

function options(select, values, chosen) {
  select.replaceChildren(...values.map((v) => new Option(v, v, v === chosen, v === chosen)));
}

function collection() { return state.collections.find((c) => c.name === $('collection').value); }

function offerOperators() {
  const column = collection().columns.find((c) => c.name === $('filter-column').value);
  options($('filter-op'), column ? column.filters : []);
}

function offer() {
  const c = collection();
  options($('relation'), c.relations, c.relation);
  options($('filter-column'), ['', ...c.columns.filter((x) => x.filters.length).map((x) => x.name)]);
  offerOperators();
  state.order = c.order;
}

async function connect() {
  $('who').textContent = 'Not connected';
  for (const id of ['question', 'list', 'explain']) show($(id), false);
  const answer = await call('/v1/inventory');
  const { caller } = answer;
  $('who').textContent = `${caller.name}${caller.subject ? `, ${caller.subject}` : ''}: may ${caller.rights.join(', ')}`;
  state.collections = answer.collections;
  options($('collection'), answer.collections.map((c) => c.name));
  offer();
  show($('question'), true);
  show($('explain'), caller.rights.includes('diagnose'));
}

function head(column) {
  const th = document.createElement('th');
  th.scope = 'col';
  if (!column.sortable) {
    th.textContent = column.name;
    return th;
  }
  const down = state.order === `-${column.name}`;
  const button = document.createElement('button');
  button.type = 'button';
  button.dataset.column = column.name;
  button.textContent = column.name + (down ? ' ↓' : state.order === column.name ? ' ↑' : '');
  th.ariaSort = down ? 'descending' : state.order === column.name ? 'ascending' : 'none';
  button.addEventListener('click', () => {
    state.order = state.order === column.name ? `-${column.name}` : column.name;
    run(() => list(''));
  });
  th.append(button);
  return th;
}

// What has the focus is about to be replaced, or disabled: the keyboard goes on from where it was.
function keepFocus(sorted, paged) {
  if (sorted) [...$('heads').querySelectorAll('button')].find((b) => b.dataset.column === sorted)?.focus();
  if (paged && $('next').disabled) $('first').focus();
}

async function list(token) {
  const c = collection();
  const focus = document.activeElement;
  const query = new URLSearchParams({ relation: $('relation').value, page_size: $('size').value });
  if (state.order) query.set('order_by', state.order);
  if ($('subject').value) query.set('subject', $('subject').value);
  if ($('filter-column').value) query.set(`filter.${$('filter-column').value}.${$('filter-op').value}`, $('filter-value').value);
  if (token) query.set('page_token', token);
  const page = await call(`/v1/inventory/${encodeURIComponent(c.name)}?${query}`);
  state.next = page.next_page_token;
  const columns = c.columns.filter((column) => column.shown);
  $('heads').replaceChildren(...columns.map(head));
  $('rows').replaceChildren(...page.items.map((row) => {
    const tr = document.createElement('tr');
    for (const column of columns) {
      const value = row[column.name];
      tr.insertCell().textContent = value === null || value === undefined ? '' : typeof value === 'object' ? JSON.stringify(value) : value;
    }
    return tr;
  }));
  const more = state.next ? (page.complete ? ', there are more' : ', not all could be looked at yet') : '';
  $('caption').textContent = `${page.items.length} rows of ${c.name}${more}`;
  $('next').disabled = !state.next;
  show($('list'), true);
  keepFocus(focus.dataset.column, focus === $('next'));
}

async function explain() {
  const body = { collection: collection().name, id: $('explain-id').value, relation: $('relation').value };
  if ($('subject').value) body.subject = $('subject').value;
  const answer = await call('/v1/explain', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });
  const may = answer.allowed ? 'has' : 'has not';
  $('why').textContent = `${answer.subject} ${may} ${answer.relation} of ${answer.object}\n${JSON.stringify(answer, null, 2)}`;
}

// One thing at a time; what went wrong is shown, not swallowed.
let busy = false;
async function run(what) {
  if (busy) return;
  busy = true;
  document.body.ariaBusy = 'true';
  complain('');
  try {
    await what();
  } catch (e) {
    complain(e.message);
  } finally {
    busy = false;
    document.body.ariaBusy = 'false';
  }
}

function on(form, what) {
  $(form).addEventListener('submit', (e) => {
    e.preventDefault();
    run(what);
  });
}

on('connect', connect);
on('question', () => list(''));
on('explain', explain);
$('next').addEventListener('click', () => run(() => list(state.next)));
$('first').addEventListener('click', () => run(() => list('')));
$('collection').addEventListener('change', offer);
$('filter-column').addEventListener('change', offerOperators);
const given = new URLSearchParams(location.hash.slice(1)); // #url=..&token=.. : a fragment never leaves the browser
if (given.get('url')) $('url').value = given.get('url');
if (given.get('token')) $('token').value = given.get('token');
history.replaceState(null, '', location.pathname);
if ($('url').value && $('token').value) run(connect);
