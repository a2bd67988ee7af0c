// The page as a whole.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useEffect, useMemo, useReducer, useRef, useState } = preactHooks;
  const { Nodes, Picked, SignIn, Source, Waiting, amount, matches, part, terms } = koordgate;
  const FEW = 6; // nodes up to which all are open at first
  const SHOW = {
    all: ["all nodes", () => true],
    free: ["with something free", (node) => node.devices.some((one) => one.amounts.some((each) => each[2] > 0))],
    held: ["with something held", (node) => node.holders.length > 0],
    bad: ["with a device that is not usable", (node) => node.bad > 0 || Boolean(node.blocked) || Boolean(node.undelivered)],
  };
  const STATES = {
    file: "as of the file",
    loading: "loading…",
    live: "live",
    polling: "live, every 10 s",
    lost: "not connected; trying again",
  };

  function totals(nodes) {
    const found = new Map();
    for (const node of nodes) {
      for (const one of node.devices) {
        one.resources.forEach((resource, at) => {
          const sum = found.get(resource.name) ?? { ...resource, type: one.type, total: 0, held: 0 };
          sum.total += one.amounts[at][0];
          sum.held += one.amounts[at][1];
          found.set(resource.name, sum);
        });
      }
    }
    return [...found.values()];
  }

  const whole = (sum) => (sum.unit === "percent" ? `${Math.round(sum.total / 100)} devices` : amount(sum.total, sum.unit));

  function Header({ source, query, setQuery, show, setShow, shown, search }) {
    const all = [...source.nodes.values()];
    const sums = useMemo(() => totals(all), [source.revision, source.nodes.size, source.at]);
    const devices = all.reduce((sum, node) => sum + node.devices.length, 0);
    return html`<header>
      <div class="title">
        <h1>Device map</h1>
        <p class=${`state ${source.state}`} role="status"><span class="dot" aria-hidden="true"></span>${STATES[source.state]}${source.message && `: ${source.message}`}</p>
        ${source.token && html`<button type="button" onClick=${() => source.signOut()}>Sign out</button>`}
      </div>
      <dl class="totals">
        <div><dt>nodes</dt><dd>${source.nodes.size}${source.total > source.nodes.size ? ` of ${source.total}` : ""}</dd></div>
        <div><dt>devices</dt><dd>${devices}</dd></div>
        ${sums.map((sum) => html`<div><dt>${sum.word === "device" || sum.type === sum.word ? sum.type : `${sum.type} ${sum.word}`} held</dt>
          <dd>${Math.round(part(sum.held, sum.total))} % <span class="quiet">of ${whole(sum)}</span></dd></div>`)}
      </dl>
      <div class="tools" role="search">
        <label class="unseen" for="search">Search</label>
        <input id="search" ref=${search} type="search" autocomplete="off" spellcheck=${false} placeholder="Pod, namespace, node, model or UUID ( / )"
          value=${query} onInput=${(event) => setQuery(event.target.value)} />
        <label class="unseen" for="show">Show</label>
        <select id="show" value=${show} onChange=${(event) => setShow(event.target.value)}>
          ${Object.entries(SHOW).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}
        </select>
        <p class="found" role="status">${query || show !== "all" ? `${shown} of ${source.nodes.size} nodes` : ""}</p>
      </div>
    </header>`;
  }

  function App() {
    const [, again] = useReducer((count) => count + 1, 0);
    const sourceRef = useRef();
    const asked = useRef(0);
    sourceRef.current ??= new Source(() => (asked.current ||= requestAnimationFrame(() => ((asked.current = 0), again()))));
    const source = sourceRef.current;
    const [query, setQuery] = useState("");
    const [show, setShow] = useState("all");
    const [pointed, point] = useState("");
    const [picked, pick] = useState("");
    const [opened, setAllOpened] = useState(new Map());
    const search = useRef();
    useEffect(() => void source.start(), []);
    useEffect(() => {
      const press = (event) => {
        const typing = event.target.closest?.("input, select, textarea");
        if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
          event.preventDefault();
          search.current?.focus();
        } else if (event.key === "Escape") {
          if (typing === search.current && search.current?.value) setQuery("");
          else pick("");
        }
      };
      addEventListener("keydown", press);
      return () => removeEventListener("keydown", press);
    }, []);
    if (source.state === "signin") return html`<${SignIn} source=${source} />`;
    const wanted = terms(query);
    const chosen = SHOW[show][1];
    const all = source.names.map((name) => source.nodes.get(name)).filter(Boolean);
    const nodes = all.filter((node) => chosen(node) && matches(node.text, wanted));
    const waiting = source.waiting.pods ?? [];
    const shown = waiting.filter((pod) => matches(`${pod.namespace}/${pod.name}\n${pod.uid}`.toLowerCase(), wanted));
    const pods = { picked, pick, point, lit: pointed || picked };
    const setOpened = (name, open) => setAllOpened(new Map(opened).set(name, open));
    return html`
      <a class="skip" href="#nodes">Skip to the nodes</a>
      <${Header} source=${source} query=${query} setQuery=${setQuery} show=${show} setShow=${setShow} shown=${nodes.length} search=${search} />
      <div class="columns">
        <aside aria-label="Pods">
          <${Picked} nodes=${all} pods=${pods} find=${setQuery} />
          <${Waiting} waiting=${source.waiting} shown=${shown} />
        </aside>
        <main id="nodes" tabindex="-1">
          ${nodes.length === 0 && html`<p class="quiet">${source.state === "loading" ? "Loading…" : all.length ? "No node matches." : "No node has devices or CPUs to give."}</p>`}
          <${Nodes} nodes=${nodes} pods=${pods} opened=${opened} setOpened=${setOpened} few=${all.length <= FEW} />
        </main>
      </div>`;
  }

  const root = document.getElementById("app");
  root.textContent = "";
  preact.render(html`<${App} />`, root);
})();
