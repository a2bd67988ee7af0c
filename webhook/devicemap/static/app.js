// The page as a whole.
"use strict";

(() => {
  const html = htm.bind(preact.h);
  const { useEffect, useMemo, useReducer, useRef, useState } = preactHooks;
  const { Held, Nodes, Overview, Picked, SignIn, Source, Waiting, Zoomed, amount, counted, find, matches, number, part, terms, toNode } = koordgate;
  const FEW = 12; // nodes up to which all are shown with all that they have
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

  const of = (count, total, noun) => `${count === total ? "" : `${number(count)} of `}${counted(total, noun)}`;
  const whole = (sum) => (sum.unit === "percent" ? `${number(Math.round(sum.total / 100))} devices` : amount(sum.total, sum.unit));

  // The name of the node in the page's address; "" if there is none.
  function namedNode() {
    try {
      return location.hash.startsWith("#/") ? decodeURIComponent(location.hash.slice(2)) : "";
    } catch {
      return ""; // somebody wrote the address by hand
    }
  }

  function Header({ source, query, setQuery, show, setShow, found, search }) {
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
        ${sums.map((sum) => html`<div><dt>${sum.word === "device" || sum.type === sum.word ? sum.type : `${sum.type} ${sum.word}`} held</dt>
          <dd>${Math.round(part(sum.held, sum.total))} % <span class="quiet">of ${whole(sum)}</span></dd></div>`)}
      </dl>
      <div class="tools" role="search">
        <label class="unseen" for="search">Search</label>
        <input id="search" ref=${search} type="search" autocomplete="off" spellcheck=${false} placeholder="Pod, node, model, UUID ( / )"
          value=${query} onInput=${(event) => setQuery(event.target.value)} />
        <label class="unseen" for="show">Show</label>
        <select id="show" value=${show} onChange=${(event) => setShow(event.target.value)}>
          ${Object.entries(SHOW).map(([key, [text]]) => html`<option value=${key}>${text}</option>`)}
        </select>
        <p class="found" role="status">${all.length > 0 && `${of(found.nodes.length, Math.max(source.total, all.length), "node")}, ${of(found.devices, devices, "device")}${query && `, ${counted(found.holders.length, "holder")}`}`}</p>
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
    const [name, setName] = useState(namedNode);
    const place = useRef(null);
    const search = useRef();
    const main = useRef();
    const zoom = (to) => {
      place.current = to;
      location.hash = toNode(to.name);
    };
    useEffect(() => void source.start(), []);
    useEffect(() => void (document.title = `${name ? `${name} · ` : ""}Device map · koordgate`), [name]);
    useEffect(() => {
      const moved = () => setName(namedNode());
      const press = (event) => {
        const typing = event.target.closest?.("input, select, textarea");
        if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
          event.preventDefault();
          search.current?.focus();
        } else if (event.key === "Escape") {
          if (typing === search.current && search.current?.value) setQuery("");
          else if (namedNode()) location.hash = toNode("");
          else pick("");
        }
      };
      addEventListener("keydown", press);
      addEventListener("hashchange", moved);
      return () => {
        removeEventListener("keydown", press);
        removeEventListener("hashchange", moved);
      };
    }, []);
    if (source.state === "signin") return html`<${SignIn} source=${source} />`;
    const wanted = terms(query);
    const chosen = SHOW[show][1];
    const all = source.names.map((name) => source.nodes.get(name)).filter(Boolean);
    const found = find(all.filter(chosen), wanted);
    const waiting = source.waiting.pods ?? [];
    const shown = waiting.filter((pod) => matches(`${pod.namespace}/${pod.name}\n${pod.uid}`.toLowerCase(), wanted));
    const pods = { picked, pick, point, lit: pointed || picked };
    const ask = (text) => {
      setQuery(text);
      if (name) location.hash = toNode("");
    };
    const skip = (event) => (event.preventDefault(), main.current.focus()); // the address names the node
    return html`
      <a class="skip" href="#nodes" onClick=${skip}>Skip to the nodes</a>
      <${Header} source=${source} query=${query} setQuery=${ask} show=${show} setShow=${setShow} found=${found} search=${search} />
      <div class="columns">
        <aside aria-label="Pods">
          <${Picked} nodes=${all} pods=${pods} find=${ask} />
          ${query && html`<${Held} found=${found} pods=${pods} />`}
          <${Waiting} waiting=${source.waiting} shown=${shown} />
        </aside>
        <main id="nodes" tabindex="-1" ref=${main}>
          ${name && html`<${Zoomed} key=${name} name=${name} node=${source.nodes.get(name)} found=${found} pods=${pods} device=${place.current?.name === name ? place.current.at : null} loading=${source.state === "loading"} />`}
          ${!name && found.nodes.length === 0 && html`<p class="quiet">${source.state === "loading" ? "Loading…" : all.length ? "No node matches." : "No node has devices or CPUs to give."}</p>`}
          ${!name && all.length <= FEW && html`<${Nodes} found=${found} pods=${pods} />`}
          ${all.length > FEW && html`<${Overview} found=${found} pods=${pods} hidden=${Boolean(name) || found.nodes.length === 0} zoom=${zoom} />`}
        </main>
      </div>`;
  }

  const root = document.getElementById("app");
  root.textContent = "";
  preact.render(html`<${App} />`, root);
})();
